// Classify: the best classes of pictures.

import { find, make, pause, percent, say } from "./dom.js";
import { acceptFiles, Camera, pasted, preview } from "./pictures.js";

const AT_ONCE = 16;  // pictures of a request
const TOP = 3;

// `predict` returns a promise of the predictions of files, with so many classes each.
export function startClassify(predict) {
  const list = find("#predictions");
  const live = find("#classify-live");
  const camera = new Camera(find("#classify-camera"), live, (on) => { if (on) watch(); });

  async function classify(files) {
    say("");
    for (let first = 0; first < files.length; first += AT_ONCE) {
      const part = files.slice(first, first + AT_ONCE);
      const cards = part.map((file) => card(file));
      list.prepend(...cards.map((c) => c.element));
      find("#classify-clear").hidden = false;
      try {
        const predictions = await predict(part, TOP);
        predictions.forEach((prediction, i) => cards[i].show(prediction));
      } catch (error) {
        for (const c of cards) c.fail(error.message);
      }
    }
  }

  acceptFiles(find("#classify-drop"), classify);
  document.addEventListener("paste", (event) => {
    if (!find("#classify").hidden && pasted(event).length) classify(pasted(event));
  });
  function clear() {
    list.replaceChildren();
    find("#classify-clear").hidden = true;
  }
  find("#classify-clear").addEventListener("click", clear);

  async function watch() {
    const caption = live.querySelector("figcaption");
    while (camera.stream) {
      try {
        const [found] = await predict([await camera.frame()], TOP);
        caption.textContent = found.known ? `${title(found)} (${number(found.best[0])})` : title(found);
      } catch (error) {
        caption.textContent = error.message;
        await pause(1000);
      }
      await pause(200);
    }
  }

  return {
    clear,
    show(model) {
      find("#classify-empty").hidden = !model.empty;
      find("#classify-tools").hidden = model.empty;
    },
    hide: () => camera.stop(),
  };
}

const title = (prediction) => (prediction.known ? String(prediction.class) : "unknown");
const number = (scored) => (scored.probability === null
  ? `similarity ${scored.similarity.toFixed(2)}` : percent(scored.probability));

function card(file) {
  const image = preview(file);
  const name = make("h3", { textContent: "…" });
  const body = make("div", {}, name);
  const element = make("li", { className: "prediction" }, image, body);
  return {
    element,
    fail(message) {
      name.textContent = file.name;
      body.append(make("p", { className: "problem", textContent: message }));
    },
    show(prediction) {
      if (prediction.error) {
        this.fail(prediction.error.message);
        return;
      }
      name.textContent = title(prediction);
      image.alt = file.name;
      if (!prediction.known) {
        body.append(make("p", { className: "hint", textContent: "Unlike all known classes. If it is one of them, most likely:" }));
      }
      body.append(make("ul", { className: "scores" }, ...prediction.best.map(score)));
    },
  };
}

function score(scored) {
  const bar = make("div");
  const share = scored.probability ?? scored.similarity;
  bar.style.width = `${100 * Math.min(1, Math.max(0, share))}%`;
  return make("li", {}, make("span", { textContent: String(scored.class) }),
    make("span", { textContent: number(scored) }), make("div", { className: "track", "aria-hidden": "true" }, bar));
}
