// Starts `uprof lsp` and passes commands to it: the server does everything else.

import * as vscode from "vscode";
import { LanguageClient, type Executable } from "vscode-languageclient/node";

let client: LanguageClient | undefined;

/** Return the command line of the language server for these settings. */
export function serverCommand(command: readonly string[], run: string): Executable {
  const [program = "uprof", ...before] = command;
  return { command: program, args: [...before, "lsp", ...(run ? ["--run", run] : [])] };
}

async function start(): Promise<void> {
  await client?.stop().catch(() => undefined); // it may never have started
  const settings = vscode.workspace.getConfiguration("uprof");
  client = new LanguageClient(
    "uprof",
    "uprof",
    serverCommand(settings.get<string[]>("command", ["uprof"]), settings.get("run", "")),
    { documentSelector: [{ scheme: "file", language: "python" }] },
  );
  try {
    await client.start();
  } catch (error) {
    vscode.window.showWarningMessage(
      `uprof: the language server did not start (${error}). Install it with pip install 'unified-prof[editor]', or set uprof.command.`,
    );
  }
}

async function showNewestRun(): Promise<void> {
  const run = await client?.sendRequest<string | null>("workspace/executeCommand", { command: "uprof.reload" });
  vscode.window.showInformationMessage(run ? `uprof: showing ${run}` : "uprof: no run in this workspace");
}

async function openPageAtLine(): Promise<void> {
  const editor = vscode.window.activeTextEditor;
  if (!editor || !client) return;
  const place = [client.code2ProtocolConverter.asUri(editor.document.uri), editor.selection.active.line];
  const page = await client.sendRequest<string | null>("workspace/executeCommand", {
    command: "uprof.openPage",
    arguments: place,
  });
  if (!page) vscode.window.showInformationMessage("uprof: the run has no costs of this file");
}

export async function activate(context: vscode.ExtensionContext): Promise<void> {
  context.subscriptions.push(
    vscode.commands.registerCommand("uprof.showNewestRun", showNewestRun),
    vscode.commands.registerCommand("uprof.openPageAtLine", openPageAtLine),
    vscode.workspace.onDidChangeConfiguration((change) => {
      if (change.affectsConfiguration("uprof")) void start();
    }),
  );
  await start();
}

export function deactivate(): Promise<void> | undefined {
  return client?.stop();
}
