// Requests to the server.

import { make, pause } from "./dom.js";

export class ApiError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

async function request(method, path, body) {
  const options = { method, headers: {} };
  if (body instanceof FormData) options.body = body;
  else if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers["Content-Type"] = "application/json";
  }
  for (let tries = 0; ; tries += 1) {
    let answer;
    try {
      answer = await fetch(path, options);
    } catch {
      throw new ApiError("no_connection", "The server cannot be reached. Is it still running?");
    }
    if (answer.status === 429 && tries < 5) {  // too much at once: wait as long as it says
      await pause(1000 * Number(answer.headers.get("Retry-After") ?? 1));
      continue;
    }
    if (answer.ok) return answer;
    const content = await answer.json().catch(() => ({}));
    if (answer.status === 401) window.location.reload();
    const { code = "error", message = `The server answered ${answer.status}.` } = content.error ?? {};
    throw new ApiError(code, message);
  }
}

export async function call(method, path, body) {
  const answer = await request(method, path, body);
  return answer.json().catch(() => ({}));
}

// Save a file that the server makes. A link would not show the server's error.
export async function download(path) {
  const answer = await request("GET", path);
  const [, name] = answer.headers.get("Content-Disposition").match(/filename="(.*)"/);
  const href = URL.createObjectURL(await answer.blob());
  make("a", { href, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);  // some browsers read it later
}

export function form(field, files) {
  const content = new FormData();
  for (const file of files) content.append(field, file, file.name ?? "picture.jpg");
  return content;
}

// Follow a job until it has ended: yields its state at each change. A lost connection is tried again.
export async function* follow(id, onLost) {
  for (let wait = 500; ; wait = Math.min(2 * wait, 8000)) {
    try {
      const answer = await fetch(`/v1/jobs/${id}/events`);
      if (answer.status === 404) return;
      if (!answer.ok) throw new Error(answer.statusText);
      onLost(false);
      wait = 500;
      for await (const job of events(answer.body)) {
        yield job;
        if (["kept", "discarded", "failed", "cancelled"].includes(job.state)) return;
      }
    } catch (error) {
      if (error instanceof ApiError) throw error;
    }
    onLost(true);
    await pause(wait);
  }
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.split("\n").find((line) => line.startsWith("data: "));
      if (data) yield JSON.parse(data.slice(6));
    }
  }
}
