// Checks the bundle with stand-ins for `vscode` and the language client's process.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import Module from "node:module";
import test from "node:test";

const require = createRequire(import.meta.url);
const registered = new Map();
const messages = [];
const settings = { command: ["no-such-program", "-m", "unified_prof"], run: "out" };

class Disposable { dispose() {} }
const event = () => new Disposable();
const vscode = new Proxy({
  version: "1.95.0",
  Disposable,
  EventEmitter: class { event = event; fire() {} dispose() {} },
  window: new Proxy({
    showWarningMessage: (text) => messages.push(text),
    showInformationMessage: (text) => messages.push(text),
    createOutputChannel: () => new Proxy({}, { get: () => () => undefined }),
    activeTextEditor: undefined,
  }, { get: (target, name) => target[name] ?? event }),
  workspace: new Proxy({
    getConfiguration: () => ({ get: (name, otherwise) => settings[name] ?? otherwise }),
    onDidChangeConfiguration: event,
    textDocuments: [],
    workspaceFolders: [],
  }, { get: (target, name) => target[name] ?? event }),
  commands: { registerCommand: (name, run) => { registered.set(name, run); return new Disposable(); } },
}, { get: (target, name) => target[name] ?? class {} });

const load = Module._load;
Module._load = (name, ...more) => (name === "vscode" ? vscode : load(name, ...more));
const extension = require("../dist/extension.js");

test("the server is started with the configured command and run", () => {
  assert.deepEqual(extension.serverCommand(settings.command, "out"), {
    command: "no-such-program",
    args: ["-m", "unified_prof", "lsp", "--run", "out"],
  });
  assert.deepEqual(extension.serverCommand([], ""), { command: "uprof", args: ["lsp"] });
});

test("both commands are registered, and a server that does not start is named", async () => {
  await extension.activate({ subscriptions: [] });
  assert.deepEqual([...registered.keys()].sort(), ["uprof.openPageAtLine", "uprof.showNewestRun"]);
  assert.match(messages.join("\n"), /did not start/);
});
