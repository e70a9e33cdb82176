// Teach: collect pictures of classes, learn them, keep or discard the result.

import { ApiError, call, follow, form } from "./api.js";
import { attempt, count, find, make, percent, say } from "./dom.js";
import { acceptFiles, byClass, Camera, pasted, preview, shrink } from "./pictures.js";

const AT_ONCE = 8;  // pictures of a request
const REFUSED = ["too_many", "too_large", "invalid_request"];  // for what they are
const STAGES = {
  starting: "Starting…", preparing: "Reading the pictures…", "computing features": "Processing the pictures…",
  learning: "Learning…", writing: "Saving…", discarding: "Discarding…",
};

const TITLES = { edit: "Teach", progress: "Teach (learning)", result: "Teach (keep?)" };

export function startTeach(state) {
  const cards = [];
  // Each has a file, its card (null once it is removed), its id and class as the server has them,
  // and the task that learns it.
  let pictures = [];
  let job = null;  // the task that collects pictures
  let period = 0;  // counts the changes of model
  let turn = Promise.resolve();  // the last request
  let sending = false;  // before the task is learnt
  let following = null;
  let ended = null;  // the task that was followed last

  // ---- pictures ----

  // Requests go one after another: two at once would begin a task each.
  function inTurn(action) {
    const done = turn.then(action).catch((error) => {
      if (!["no_job", "not_collecting"].includes(error.code)) throw error;
      forget();  // the server has dropped the task: all pictures are still here
      return action();
    });
    turn = done.catch(() => {});
    return done;
  }

  const all = () => pictures.filter((p) => p.card);

  function forget() {
    job = null;
    pictures = all();
    for (const picture of pictures) picture.id = picture.label = null;
  }

  const upload = () => attempt(null, () => inTurn(sync));

  async function task() {
    const now = period;
    const id = job ?? (await call("POST", `${state.address}/jobs`)).id;
    if (now !== period) {  // it is of the model before
      call("DELETE", `/v1/jobs/${id}`).catch(() => {});
      throw new ApiError("no_job", "the model was changed");
    }
    job = id;
    return id;
  }

  // The class that a picture is to have; null if it was removed.
  const wanted = (picture) => (picture.card ? picture.card.label || picture.label : null);

  // Bring the server's pictures up to date: move or remove those that it has, then add the others.
  async function sync() {
    await state.ready;
    for (;;) {
      const moved = pictures.filter((p) => p.id && p.label !== wanted(p));
      const unsent = pictures.filter((p) => p.card?.label && !p.id && !p.learning);
      if (moved.length) await move(moved.filter((p) => wanted(p) === wanted(moved[0])));
      else if (unsent.length) await send(unsent.filter((p) => p.card === unsent[0].card));
      else break;
    }
    pictures = all();
  }

  async function move(moved) {
    const label = wanted(moved[0]);
    const images = moved.map((p) => p.id);
    const { findings } = await call("PATCH", `/v1/jobs/${await task()}/images`, { images, class: label });
    for (const picture of moved) picture.label = label;
    note(findings);
  }

  async function send(unsent) {
    const { card } = unsent[0];
    const { label } = card;
    const part = unsent.slice(0, AT_ONCE);
    const id = await task();
    let answer;
    try {
      answer = await call("POST", `/v1/jobs/${id}/images?label=${encodeURIComponent(label)}`,
        form("image", part.map((p) => p.file)));
    } catch (error) {
      if (!REFUSED.includes(error.code)) throw error;
      unsent.forEach(hide);
      card.tell(`${count(unsent.length, "picture")}: ${error.message}`);
      return;
    }
    if (id !== job) return;
    answer.added.forEach((added, i) => {
      Object.assign(part[i], { id: added.id, label });
      if (added.error) {
        hide(part[i]);
        card.tell(`${part[i].file.name}: ${added.error.message}`);
      }
    });
    note(answer.findings);
  }

  function hide(picture) {
    const { card } = picture;
    if (!card) return;
    picture.card = null;
    picture.element.remove();
    card.recount();
  }

  function note(found) {
    const flagged = new Set(found.flatMap((f) => f.images));
    for (const picture of pictures) picture.element.classList.toggle("flagged", flagged.has(picture.id));
    find("#findings ul").replaceChildren(...found.slice(0, 20).map((f) => make("li", { textContent: f.message })));
    find("#findings").hidden = !found.length;
    ready();
  }

  // Say what is missing before anything can be learnt.
  function missing() {
    const full = cards.filter((card) => card.size);
    if (full.some((card) => !card.typed)) return "Give each class a name.";
    const few = state.model?.empty && new Set(full.map((card) => card.typed)).size < 2;
    if (few) return "Add pictures of at least two classes.";
    return full.length ? "" : "Add pictures first.";
  }

  function ready() {
    const busy = sending || cards.some((card) => card.busy);
    find("#learn").disabled = missing() || busy;
    find("#learn-hint").textContent = sending ? "Sending the pictures…" : missing();
  }

  // ---- classes ----

  function addClass(name = "") {
    const card = classCard(name);
    cards.push(card);
    find("#classes").append(card.element);
    ready();
    return card;
  }

  function classCard(name) {
    const input = make("input", { value: name, maxLength: 100, placeholder: "Name of the class", autocomplete: "off" });
    input.setAttribute("list", "known");
    const tally = make("span", { className: "count", textContent: "no pictures" });
    const removeClass = make("button", { type: "button", className: "quiet", textContent: "Remove class" });
    const files = make("input", { type: "file", accept: "image/*", multiple: true });
    const drop = make("label", { className: "drop small" }, files,
      make("span", {}, make("b", { textContent: "Drop pictures here" }), ", paste them, or choose files"));
    const record = make("button", { type: "button", textContent: "Use the webcam", "aria-pressed": "false" });
    const shoot = make("button", { type: "button", textContent: "Take a picture", hidden: true });
    const live = make("figure", { className: "live", hidden: true }, make("video", { muted: true, playsInline: true }));
    const thumbs = make("ul", { className: "thumbs", "aria-label": "Pictures" });
    const problems = make("ul", { className: "problems", hidden: true });
    const element = make("div", { className: "class-card" },
      make("p", { className: "row" }, make("label", {}, "Class ", input), tally, removeClass),
      drop, make("p", { className: "row" }, record, shoot), live, thumbs, problems);
    element.role = "group";
    const camera = new Camera(record, live, (on) => { shoot.hidden = !on; });

    const card = {
      element, busy: 0, label: name,
      get typed() { return input.value.trim(); },
      get size() { return thumbs.childElementCount; },
      focus: () => input.focus(),
      stop: () => camera.stop(),
      async take(found) {
        say("");
        card.label = card.typed;  // the field may keep the focus: it tells of its change later
        if (!card.label) input.focus();
        problems.replaceChildren();
        problems.hidden = true;
        card.busy += 1;
        ready();
        for (let i = 0; i < found.length; i += AT_ONCE) {
          const part = found.slice(i, i + AT_ONCE);
          const shrunk = await Promise.all(part.map((file) => shrink(file).catch(() => null)));
          shrunk.forEach((file, n) => (file ? show(file) : card.tell(`${part[n].name}: it cannot be read`)));
          await upload();
        }
        card.busy -= 1;
        ready();
      },
      tell(problem) {
        problems.append(make("li", { textContent: problem }));
        problems.hidden = false;
      },
      recount() {
        tally.textContent = card.size ? count(card.size, "picture") : "no pictures";
        ready();
      },
      drop() {
        card.stop();
        cards.splice(cards.indexOf(card), 1);
        element.remove();
        for (const picture of pictures) if (picture.card === card) picture.card = null;
        if (!cards.length) addClass();
        ready();
      },
    };

    function show(file) {
      if (!cards.includes(card)) return;  // it was removed in the meantime
      const cross = make("button", { type: "button", textContent: "×", "aria-label": `Remove ${file.name}` });
      const element = make("li", {}, preview(file, file.name), cross);
      const picture = { file, card, element, id: null, label: null, learning: null };
      cross.addEventListener("click", () => {
        (element.nextSibling?.querySelector("button") ?? files).focus();
        hide(picture);
        upload();
      });
      thumbs.append(element);
      pictures.push(picture);
      card.recount();
    }

    input.addEventListener("input", ready);
    input.addEventListener("change", () => {
      card.label = card.typed;
      upload();
    });
    acceptFiles(drop, card.take, true);
    element.addEventListener("paste", (event) => {
      if (pasted(event).length) card.take(pasted(event));
    });
    removeClass.addEventListener("click", () => {
      card.drop();
      upload();
    });
    shoot.addEventListener("click", () => attempt(null, async () => card.take([await camera.frame()])));
    return card;
  }

  find("#add-class").addEventListener("click", () => addClass().focus());
  find("#add-folder").addEventListener("change", (event) => {
    const { classes, aside, beside, unread, tooHigh } = byClass(event.target.files);
    event.target.value = "";
    const sorted = [...classes].sort(([a], [b]) => a.localeCompare(b));
    for (const [name, files] of sorted) {
      const spare = cards.find((card) => card.typed === name) ?? cards.find((card) => !card.typed && !card.size);
      if (spare && !spare.typed) spare.element.querySelector("input").value = name;
      (spare ?? addClass(name)).take(files);
    }
    const told = [...unread].map(([suffix, n]) => `Left out ${count(n, `${suffix} file`)}: convert to JPEG or PNG.`);
    if (tooHigh) {
      const [[first]] = sorted;
      told.unshift(`${first} contains folders. If those are the classes, remove what was added, and add ${first} itself.`);
    }
    if (aside.size) {
      const places = [...aside].map(([name, n]) => `${n.toLocaleString("en")} in ${name}`).join(", ");
      told.push(`Took the pictures in train; left out those for testing: ${places}.`);
    }
    if (beside) told.push(`Left out ${count(beside, "picture")} outside of the folders of classes.`);
    if (!classes.size) told.unshift("There are no pictures in this folder.");
    if (told.length) say(told.join(" "));
  });

  // ---- learn ----

  find("#learn").addEventListener("click", (event) => attempt(event.target, async () => {
    for (const card of cards) card.stop();
    const now = period;
    sending = true;
    ready();
    const learnt = await inTurn(async () => {
      if (now !== period) return null;
      await sync();
      if (missing()) throw new Error(missing());  // pictures were refused
      const id = await task();
      const learning = all();
      for (const picture of learning) picture.learning = id;
      try {
        await call("POST", `/v1/jobs/${id}/learn`, {});
      } catch (error) {
        for (const picture of learning) picture.learning = null;
        throw error;
      }
      forget();
      return id;
    }).finally(() => { sending = false; });
    if (learnt && now === period) attempt(null, () => watch(learnt));
  }).then(ready));
  find("#cancel").addEventListener("click", (event) => attempt(event.target, () => call("DELETE", `/v1/jobs/${following}`)));
  for (const decision of ["keep", "discard"]) {
    find(`#${decision}`).addEventListener("click", (event) => attempt(event.target, () => call("POST", `/v1/jobs/${following}/${decision}`)));
  }

  async function watch(id) {
    if (following === id) return;
    following = id;
    let last = null;
    for await (const found of follow(id, (lost) => { find("#left").textContent = lost ? "The connection is lost. Trying again…" : ""; })) {
      if (following !== id) return;
      last = found;
      showJob(found);
    }
    if (following !== id) return;
    following = null;
    ended = id;
    showPart("edit");
    const kept = last?.state === "kept";
    if (last?.state !== "failed") find("#warnings").replaceChildren();
    const learnt = all().filter((p) => p.learning === id);
    const here = learnt.length ? "; the pictures are still on this page" : "";
    if (kept) say("");
    else if (last?.error) say(`${last.error.message}. The model is unchanged${here}.`);
    else if (!["discarded", "cancelled"].includes(last?.state)) {
      say("The server no longer knows this task. The model is unchanged.");
    }
    for (const picture of learnt) picture.learning = null;
    if (kept) {
      const used = new Set(learnt.map((p) => p.card));
      learnt.forEach(hide);
      for (const card of used) if (!card.size) card.drop();
      note([]);
    }
    if (learnt.length) upload();  // what is left goes into a new task
    await state.refresh();
    if (kept && state.view === "teach") await state.open("classify");
    if (kept) say(`Kept: the model knows ${count(state.model.classes.length, "class", "classes")} now.`, true);
  }

  function showJob(found) {
    const { done, total, seconds_left: left } = found.progress;
    find("#stage").textContent = STAGES[found.stage] ?? "Learning…";
    const bar = find("#bar");
    if (total && ["learning", "computing features"].includes(found.stage)) {
      bar.max = total;
      bar.value = done;
      find("#left").textContent = left === null ? "" : `About ${duration(left)} left.`;
    } else {
      bar.removeAttribute("value");
      find("#left").textContent = "";
    }
    find("#warnings").replaceChildren(...found.warnings.map((text) => make("li", { textContent: text })));
    if (found.state === "waiting" && find("#result").hidden) {
      showAccuracy(found.result);
      showPart("result");
      find("#result h2").focus();
    } else if (found.state === "learning") {
      showPart("progress");
    }
  }

  function showAccuracy(result) {
    const rows = [];
    for (const [key, name] of [["new", "new classes"], ["old", "known classes"]]) {
      if (`${key}_accuracy` in result) {
        rows.push([`Accuracy on ${result.left_out ? "" : "held-out "}pictures of ${name}`,
          `${percent(result[`${key}_accuracy`])} of ${count(result[`${key}_tested`], "picture")}${result.left_out ? ", each tested by a model without it" : ""}`]);
      }
    }
    if (!rows.length) rows.push(["Accuracy", "not measured: too few pictures to hold some out"]);
    const tested = (result.new_tested ?? 0) + (result.old_tested ?? 0);
    const more = tested && !result.left_out ? `; ${tested.toLocaleString("en")} more were only used to test` : "";
    rows.push(["Learnt from", count(result.images, "picture") + more], ["Time", duration(result.seconds)]);
    find("#accuracy").replaceChildren(...rows.flatMap(([term, text]) => [
      make("dt", { textContent: term }), make("dd", { textContent: text })]));
  }

  const showTitle = (part) => { find("#tab-teach").textContent = TITLES[part]; };

  function showPart(part) {
    showTitle(part);
    find("#teach-edit").hidden = part !== "edit";
    find("#progress").hidden = part !== "progress";
    find("#result").hidden = part !== "result";
  }

  window.addEventListener("beforeunload", (event) => {
    if (all().some((picture) => !picture.learning)) event.preventDefault();  // the browser asks
  });

  addClass();
  addClass();
  return {
    show() {
      ready();
      find("#exemplars").textContent = state.model.exemplars
        ? "The model stores some of them." : "They are never written to disk, nor stored in the model.";
    },
    // Look for a task that another window has started, or this one before it was reloaded.
    async look() {
      const { jobs } = await call("GET", "/v1/jobs");
      if (following) return;
      const active = jobs.find((j) => (
        j.model === state.name && j.id !== ended && ["learning", "waiting"].includes(j.state)));
      if (active && state.view === "teach") await watch(active.id);
      else showTitle(!active ? "edit" : active.state === "waiting" ? "result" : "progress");
    },
    hide: () => cards.forEach((card) => card.stop()),
    reset() {
      following = null;
      period += 1;
      if (job) call("DELETE", `/v1/jobs/${job}`).catch(() => {});
      job = null;
      pictures = [];
      for (const card of cards.splice(0)) {
        card.stop();
        card.element.remove();
      }
      addClass();
      addClass();
      note([]);
      showPart("edit");
    },
  };
}

const duration = (seconds) => (seconds < 100 ? `${Math.max(1, Math.round(seconds))} s` : `${Math.round(seconds / 60)} min`);
