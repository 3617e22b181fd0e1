// Calls to the service, with its problems and the network's as one kind of error.

const GIVE_UP_MS = 30_000;

/** What went wrong, in words to be shown. */
export class Failure extends Error {
  constructor(title, detail, status = 0) {
    super(detail);
    this.title = title;
    this.status = status;
  }
}

export class Api {
  /** @param {URL} base where the service is; paths are resolved against it */
  constructor(base) {
    this.base = base;
    this.key = ""; // kept here only, for services that ask for one
  }

  /** POST a body. */
  post(path, body) {
    return this.#call(path, { method: "POST", body: JSON.stringify(body) }, { "content-type": "application/json" });
  }

  get(path) {
    return this.#call(path, {}, {});
  }

  /** The parsed answer; a `Failure` where there is none. */
  async #call(path, options, more) {
    const headers = { accept: "application/json", ...more };
    if (this.key) headers.authorization = `Bearer ${this.key}`;
    const late = AbortSignal.timeout(GIVE_UP_MS);
    let response;
    let text;
    try {
      response = await fetch(new URL(path, this.base), { ...options, headers, signal: late, credentials: "omit" });
      text = await response.text();
    } catch {
      if (late.aborted) throw new Failure("No answer", `The service did not answer within ${GIVE_UP_MS / 1000} seconds.`);
      throw new Failure("The service cannot be reached", "Is the connection up, and may this page call it?");
    }
    if (response.ok) return JSON.parse(text);
    throw failureOf(response, text);
  }
}

function failureOf(response, text) {
  try {
    const { title, detail } = JSON.parse(text);
    if (title) return new Failure(title, detail ?? "", response.status);
  } catch { /* not one of the service's own problems: something between us and it spoke */ }
  return new Failure(`Status ${response.status}`, "Something in front of the service answered.", response.status);
}
