// Browsers refuse workers to pages that are opened from a folder. There, and only there, the search's worker runs in a
// hidden frame instead, so that the site needs neither a server nor a network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.inside.importScripts = async (...urls) => {
        for (const each of urls) await this.load(each)
      }
      this.ready = this.load(url)
    }
    load(url) {
      const script = this.inside.document.createElement("script")
      script.src = url
      return new Promise((done, failed) => {
        script.onload = done
        script.onerror = failed
        this.inside.document.body.append(script)
      })
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
  }
}
