// Search from disk: Chromium starts no worker on file://, so its script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${url}"></script>`;
      this.loaded = new Promise((done) => (frame.onload = done)).then(() => frame.contentWindow);
      this.loaded.then((inner) => {
        inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.loaded.then((inner) => inner.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
