"use strict";
// Conversations side by side. The server keeps the states of what they have in common, so that a fork costs nothing here.

const by = (id) => document.getElementById(id);
const panes = [];
let models = [];

function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < 3) { bytes /= 1024; unit += 1; }
  return `${unit && bytes < 1000 ? bytes.toPrecision(3) : Math.round(bytes)} ${units[unit]}`;
}

function ask(path, options = {}) {
  const key = by("key").value;
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
  return fetch(path, { ...options, headers });
}

async function failure(response) {
  try { return (await response.json()).error.message; } catch { return `the server answered ${response.status}`; }
}

// --- parameters

function parameters() {
  const number = (id) => (by(id).value === "" ? undefined : Number(by(id).value));
  const found = { stop: by("stop").value || undefined };
  for (const id of ["temperature", "top_p", "top_k", "max_tokens", "seed"]) found[id] = number(id);
  return found;
}

// says what is wrong with a parameter where it stands
function valid() {
  if (by("composer").checkValidity()) return true;
  by("parameters").open = true;
  return by("composer").reportValidity();
}

function said(pane) {
  const system = by("system").value.trim();
  return [...(system ? [{ role: "system", content: system }] : []), ...pane.messages.map(({ role, content }) => ({ role, content }))];
}

// --- server-sent events

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      yield JSON.parse(part.slice(6));
    }
  }
}

// the answer to what was said, or more of an answer that has begun
async function answer(pane) {
  if (pane.abort || !valid()) return;
  const last = pane.messages.at(-1);
  const message = last && last.role === "assistant" ? last : { role: "assistant", content: "" };
  const body = { ...parameters(), model: pane.model, messages: said(pane), stream: true };
  body.stream_options = { include_usage: true, continuous_usage_stats: true };
  if (message !== last) pane.messages.push(message);
  pane.abort = new AbortController();
  pane.running = message;
  message.reason = undefined;
  draw(pane);
  try {
    const response = await ask("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal: pane.abort.signal });
    if (!response.ok) throw new Error(await failure(response));
    let first = 0;
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      for (const choice of event.choices) {
        message.content += choice.delta.content || "";
        message.reason = choice.finish_reason || message.reason;
      }
      if (event.usage) {
        first = first || performance.now();
        pane.usage = event.usage;
        pane.seconds = (performance.now() - first) / 1000;
      }
      show(pane, message);
    }
    by("notice").textContent = "";
  } catch (error) {
    message.reason = message.reason || "stopped";
    if (error.name !== "AbortError") by("notice").textContent = error.name === "TypeError" ? "The server does not answer." : error.message;
  } finally {
    if (!message.content) pane.messages.splice(pane.messages.indexOf(message), 1);
    pane.abort = pane.running = null;
    draw(pane);
  }
}

// --- drawing: whole lists where something was added, one message while it grows

function show(pane, message) {
  const list = pane.list;
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 60;
  message.element.querySelector(".content").textContent = message.content;
  facts(pane);
  if (atEnd) list.scrollTop = list.scrollHeight;
}

function facts(pane) {
  const { usage, seconds, element } = pane;
  const find = (name) => element.querySelector(`.${name}`);
  if (!usage) return;
  const speed = seconds > 0 ? (usage.completion_tokens - 1) / seconds : 0;
  find("speed").textContent = speed ? `${speed.toFixed(speed < 10 ? 1 : 0)} tokens/s` : "–";
  const cached = usage.prompt_tokens_details.cached_tokens;
  find("length").textContent = `${usage.total_tokens} tokens${cached ? `, ${cached} of them not read again` : ""}`;
  const most = Math.max(usage.state_bytes, usage.kv_cache_bytes, 1);
  for (const [name, bytes] of [["state", usage.state_bytes], ["kv", usage.kv_cache_bytes]]) {
    find(name).style.width = `${(100 * bytes) / most}%`;
    find(`${name}-text`).textContent = size(bytes);
  }
}

function draw(pane) {
  const focused = pane.list.contains(document.activeElement);
  pane.list.setAttribute("aria-busy", Boolean(pane.abort)); // read out once it is complete
  pane.list.replaceChildren(...pane.messages.map((message, place) => {
    const item = by("message").content.firstElementChild.cloneNode(true);
    const isLast = place === pane.messages.length - 1;
    item.classList.add(message.role);
    item.classList.toggle("running", message === pane.running);
    item.classList.toggle("shared", place < pane.shared);
    item.querySelector(".role").textContent = message.role === "user" ? "you" : pane.model;
    item.querySelector(".content").textContent = message.content;
    const go = item.querySelector(".go");
    go.hidden = !isLast || Boolean(pane.abort);
    go.textContent = message.role === "user" ? "Answer" : "Continue";
    go.addEventListener("click", () => answer(pane));
    const fork = item.querySelector(".fork");
    fork.hidden = message === pane.running;
    fork.addEventListener("click", () => branch(pane, place + 1));
    message.element = item;
    return item;
  }));
  pane.list.scrollTop = pane.list.scrollHeight;
  if (focused) pane.list.focus({ preventScroll: true }); // the button that was pressed is no more
  facts(pane);
  const running = panes.some((one) => one.abort);
  by("halt").hidden = !running;
  by("send").hidden = running;
}

// --- conversations

function open(model, after) {
  const element = by("pane").content.firstElementChild.cloneNode(true);
  const pane = { element, model, messages: [], shared: 0, abort: null, running: null, list: element.querySelector(".messages") };
  const select = element.querySelector(".model");
  for (const name of models) select.add(new Option(name, name, false, name === model));
  select.addEventListener("change", () => { pane.model = select.value; draw(pane); number(); });
  element.querySelector(".close").addEventListener("click", () => shut(pane));
  panes.splice(after ? panes.indexOf(after) + 1 : panes.length, 0, pane);
  by("panes").replaceChildren(...panes.map((one) => one.element));
  for (const one of panes) one.list.scrollTop = one.list.scrollHeight;
  number();
  draw(pane);
  return pane;
}

function number() {
  panes.forEach(({ element, model }, place) => {
    element.querySelector(".place").textContent = `${place + 1} of ${panes.length}`;
    element.setAttribute("aria-label", `Conversation ${place + 1} of ${panes.length}, with ${model}`);
  });
}

function shut(pane) {
  pane.abort?.abort();
  panes.splice(panes.indexOf(pane), 1);
  pane.element.remove();
  number();
  by("text").focus();
}

function branch(pane, length) {
  const fork = open(pane.model, pane);
  fork.messages = pane.messages.slice(0, length).map(({ role, content }) => ({ role, content }));
  fork.shared = length;
  const origin = fork.element.querySelector(".origin");
  origin.hidden = false;
  origin.textContent = `Forked after ${length} ${length === 1 ? "message" : "messages"}; what follows is its own.`;
  // the next message goes to the fork alone, so that the branches differ
  for (const one of panes) one.element.querySelector(".on").checked = one === fork;
  draw(fork);
  fork.element.scrollIntoView({ inline: "end", block: "nearest" });
  by("text").focus();
}

function send() {
  const text = by("text").value.trim();
  const takes = panes.filter((pane) => pane.element.querySelector(".on").checked || panes.length === 1);
  if (!text || takes.some((pane) => pane.abort) || !valid()) return;
  if (!takes.length) { by("notice").textContent = "No conversation is marked “sends here”."; return; }
  by("text").value = "";
  for (const pane of takes) {
    pane.messages.push({ role: "user", content: text });
    answer(pane);
  }
}

function halt() {
  for (const pane of panes) pane.abort?.abort();
}

// --- the page

async function begin() {
  const response = await ask("v1/models");
  if (response.status === 401) {
    by("key-form").hidden = false;
    by("notice").textContent = "This server asks for an API key.";
    by("key").focus();
    return;
  }
  if (!response.ok) { by("notice").textContent = await failure(response); return; }
  by("key-form").hidden = true;
  if (by("key").value) sessionStorage.setItem("key", by("key").value);
  models = (await response.json()).data.map((model) => model.id);
  by("notice").textContent = "";
  if (!panes.length) for (const model of models.slice(0, 2)) open(model);
}

by("key").value = sessionStorage.getItem("key") || "";
by("key-form").addEventListener("submit", (event) => { event.preventDefault(); begin(); });
by("add").addEventListener("click", () => models.length && open(models[panes.length % models.length]));
by("halt").addEventListener("click", halt);
by("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
by("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") halt(); });
begin().catch(() => { by("notice").textContent = "The server does not answer."; });
