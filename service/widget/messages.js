// Messages between this page and the one around it. Heights are no secret and go to whoever frames the page; results go
// to allowed origins only, and only messages of the parent itself, from an allowed origin, are heard.

const SOURCE = "self-attention-widget";
const QUIET_MS = 60; // heights settle while tables are laid out

/** Whether an origin is one of those allowed: exact, or `https://*.host` for every host below. */
export function isAllowed(origin, patterns) {
  return patterns.some((pattern) => {
    const [scheme, host] = pattern.split("://*.");
    if (host === undefined) return pattern === origin;
    return origin.startsWith(`${scheme}://`) && origin.endsWith(`.${host}`);
  });
}

export class Frame {
  /**
   * @param {Window} view the window of this page
   * @param {string[]} allowed origins that may frame it
   */
  constructor(view, allowed) {
    Object.assign(this, { view, allowed, height: 0, h5p: false });
    const { ancestorOrigins } = view.location; // not in every browser
    const told = ancestorOrigins?.length ? ancestorOrigins[0] : originOf(view.document.referrer);
    this.host = isAllowed(told, allowed) ? told : ""; // else until the host has spoken
  }

  start(element) {
    this.view.addEventListener("message", (event) => this.hear(event));
    element.addEventListener("attention-ready", ({ detail }) => this.tell("ready", detail));
    element.addEventListener("attention-graded", ({ detail }) => this.tell("graded", detail));
    element.addEventListener("attention-error", ({ detail }) => this.tell("error", detail));
    let timer = 0;
    new ResizeObserver(() => {
      clearTimeout(timer);
      timer = setTimeout(() => this.measure(), QUIET_MS);
    }).observe(this.view.document.body);
    this.post({ context: "h5p", action: "hello" }, "*");
  }

  hear(event) {
    if (event.source !== this.view.parent || !isAllowed(event.origin, this.allowed)) return;
    this.host = event.origin;
    const { context, action } = event.data ?? {};
    if (context !== "h5p") return;
    if (action === "ready") this.post({ context: "h5p", action: "hello" });
    if (action === "hello" || action === "resize") {
      this.h5p = true;
      this.prepareH5p();
    }
    if (action === "resizePrepared") this.post({ context: "h5p", action: "resize", scrollHeight: this.height });
  }

  /** Say the height, if it is another than before. */
  measure() {
    const { body } = this.view.document;
    const height = Math.ceil(body.getBoundingClientRect().height);
    if (height === this.height || height === 0) return;
    this.height = height;
    this.post({ subject: "lti.frameResize", height }, "*");
    this.post({ source: SOURCE, v: 1, type: "height", height }, "*");
    if (this.h5p) this.prepareH5p();
  }

  /** H5P compares these with the frame's own height, and asks for the resize if there is something to change. */
  prepareH5p() {
    this.post({ context: "h5p", action: "prepareResize", scrollHeight: this.height, clientHeight: this.height });
  }

  /** Our own dialect. What learners did is for the host's ears only; that this page is here may be known to anyone. */
  tell(type, detail) {
    const message = { source: SOURCE, v: 1, type, ...detail };
    if (this.host) this.post(message);
    else if (type === "ready") this.post({ source: SOURCE, v: 1, type }, "*");
  }

  post(message, origin = this.host) {
    if (origin) this.view.parent.postMessage(message, origin);
  }
}

function originOf(url) {
  try {
    return new URL(url).origin;
  } catch {
    return "";
  }
}
