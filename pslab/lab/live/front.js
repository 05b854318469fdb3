// What only a page can do for a live view: draw its figures, know its theme, and say what its controls are to readers who
// do not see them.

const FIGURES = ["curves", "strips"];
const CONFIG = { displaylogo: false, displayModeBar: false };

/** plotly.js, which a page loads once; after a failure it may be tried again. */
const plotly = (library) =>
  (window.pslabPlotly ??= (async () => {
    const url = URL.createObjectURL(new Blob([library.get("source")], { type: "text/javascript" }));
    try {
      await import(url);
      return window.Plotly;
    } catch (error) {
      delete window.pslabPlotly;
      throw error;
    } finally {
      URL.revokeObjectURL(url);
    }
  })());

/** Whether the page is dark: what JupyterLab or VS Code say, else what the reader prefers. */
const isDark = (preferred) => {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  if (jpThemeLight) return jpThemeLight === "false";
  return vscodeThemeKind ? !vscodeThemeKind.includes("light") : preferred.matches;
};

/** A pressed button is said to be pressed, a wrong value to be wrong, and the title of a row names its group. */
const describe = (view, id) => {
  for (const button of view.querySelectorAll(".widget-toggle-button"))
    button.setAttribute("aria-pressed", button.classList.contains("mod-active"));
  for (const input of view.querySelectorAll("input, select"))
    input.setAttribute("aria-invalid", input.closest(".pslab-wrong") !== null);
  view.querySelectorAll(".pslab-group").forEach((group, place) => {
    const title = group.querySelector(".pslab-title");
    title.id = `${id}-${place}`;
    group.setAttribute("role", "group");
    group.setAttribute("aria-labelledby", title.id);
  });
};

/** Draw the figures that a page is to show, now and whenever they change; the answer ends it. */
const draw = (page, Plotly, el) => {
  const places = {}, drawn = {};
  for (const name of FIGURES) {
    places[name] = el.appendChild(document.createElement("div"));
    places[name].classList.add(`pslab-${name}`);
  }
  let frame = 0;
  const paint = () => {
    frame = 0;  // of many changes between two frames the last one is drawn
    for (const name of FIGURES) {
      const text = page.get(name), place = places[name];
      if (drawn[name] === text) continue;
      drawn[name] = text;
      place.style.display = text ? "" : "none";
      if (!text) continue;
      const { data, layout } = JSON.parse(text);
      Plotly.react(place, data, layout, CONFIG).catch((error) => console.error(error));
    }
  };
  const change = () => (frame ||= requestAnimationFrame(paint));
  page.on(FIGURES.map((name) => `change:${name}`).join(" "), change);
  // a cell becomes narrow without the window, too
  const sizes = new ResizeObserver(() => {
    for (const place of Object.values(places)) if (place.offsetWidth && place.data) Plotly.Plots.resize(place);
  });
  sizes.observe(el);
  paint();
  return () => {
    cancelAnimationFrame(frame);
    page.off(null, change);
    sizes.disconnect();
    Object.values(places).forEach((place) => Plotly.purge(place));
  };
};

/** What follows a view in its page; the answer ends it. */
const follow = (view, page) => {
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const tell = () => {
    const dark = isDark(preferred);
    view.classList.toggle("pslab-dark", dark);
    page.set({ dark, shown: true });
    page.save_changes();
  };
  const themes = new MutationObserver(tell);
  themes.observe(document.body, { attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  preferred.addEventListener("change", tell);

  const id = `pslab-${crypto.randomUUID?.() ?? Math.random()}`;
  const controls = new MutationObserver(() => describe(view, id));
  controls.observe(view, { subtree: true, childList: true, attributeFilter: ["class"] });

  tell();
  describe(view, id);
  return () => {
    preferred.removeEventListener("change", tell);
    [themes, controls].forEach((each) => each.disconnect());
  };
};

/** When an element stands in the page, or its view has ended before that. */
const connected = async (el, ended) => {
  while (!el.isConnected && !ended()) await new Promise((done) => setTimeout(done, 50));
};

export default () => {
  let views = 0;  // of one view, in this page
  return {
    render({ model, el }) {
      const ends = [];
      let ended = false, page = null;
      const begin = async () => {
        const of = (name) => model.widget_manager.get_model(model.get(name).replace("IPY_MODEL_", ""));
        page = await of("page");
        await connected(el, () => ended);
        if (ended) return;
        views += 1;
        ends.push(follow(el.closest(".pslab-live"), page), () => (views -= 1));
        const Plotly = await plotly(await of("library"));
        if (!ended) ends.push(draw(page, Plotly, el));
      };
      begin().catch((error) => {
        el.textContent = `The figures cannot be drawn in this page: ${error.message}. Run the cell again.`;
        console.error(error);
      });
      return () => {
        ended = true;
        ends.forEach((end) => end());
        if (!page || views) return;
        page.set({ shown: false });
        page.save_changes();
      };
    },
  };
};
