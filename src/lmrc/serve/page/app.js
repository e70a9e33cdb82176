// The page: which model, which view.

import { call, form } from "./api.js";
import { startClassify } from "./classify.js";
import { attempt, find, make, say } from "./dom.js";
import { startModel } from "./model.js";
import { shrink } from "./pictures.js";
import { startTeach } from "./teach.js";

const TABS = ["classify", "teach", "model"];
const panel = (view) => find(view === "model" ? "#model-view" : `#${view}`);
const tab = (view) => find(`#tab-${view}`);
const learnt = ({ versions, classes }) => JSON.stringify([versions, classes]);

const state = {
  name: "", model: null, readOnly: false, view: "classify", chosen: false,
  ready: null,  // a promise: kept once the models are known
  get address() { return `/v1/models/${encodeURIComponent(this.name)}`; },
  async refresh() {
    if (!this.name) return;  // the models are not known yet
    const before = this.model;
    this.model = await call("GET", this.address);
    if (before?.name === this.name && learnt(before) !== learnt(this.model)) views.classify.clear();
    find("#known").replaceChildren(...this.model.classes.map((c) => make("option", { value: String(c.name) })));
    await views[this.view].show(this.model);
    if (!this.readOnly) attempt(null, () => views.teach.look());
  },
  async open(view) {
    if (view !== this.view) views[this.view].hide();
    this.view = view;
    for (const name of TABS) {
      const on = name === view;
      panel(name).hidden = !on;
      tab(name).setAttribute("aria-selected", String(on));
      tab(name).tabIndex = on ? 0 : -1;
    }
    say("");
    await attempt(null, () => this.refresh());
  },
};
async function predict(files, top) {
  const pictures = await Promise.all(files.map(shrink));
  await state.ready;
  const { predictions } = await call("POST", `${state.address}/predict?top=${top}`, form("image", pictures));
  return predictions;
}

const views = { classify: startClassify(predict), teach: startTeach(state), model: startModel(state) };

function choose(name) {
  state.chosen = true;  // the page does not choose another one when the models are known
  state.open(name);
}

for (const name of TABS) {
  tab(name).addEventListener("click", () => choose(name));
  tab(name).addEventListener("keydown", (event) => {
    const shown = TABS.filter((n) => !tab(n).hidden);
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = shown[(shown.indexOf(name) + step + shown.length) % shown.length];
    tab(next).focus();
    choose(next);
  });
}
for (const part of ["[role=tablist]", "main"]) find(part).hidden = false;  // all buttons work now
// A drop beside the zones must not replace the page.
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && state.name) attempt(null, () => state.refresh());
});

state.ready = attempt(null, async () => {
  const { models, read_only: readOnly } = await call("GET", "/v1/models");
  state.readOnly = readOnly;
  tab("teach").hidden = readOnly;
  const choice = find("#model");
  choice.replaceChildren(...models.map((m) => make("option", { value: m.name, textContent: m.name })));
  find(".model-choice").hidden = models.length < 2;
  choice.addEventListener("change", () => {
    state.name = choice.value;
    views.teach.reset();
    views.classify.clear();
    state.open(state.view);
  });
  state.name = models[0].name;
  document.title = models.length === 1 ? `${state.name} · lmrc` : "lmrc";
  const first = models[0].empty && !readOnly ? "teach" : "classify";
  await state.open(state.chosen ? state.view : first);
});
