// What only a page can know or say: its theme, and what its controls are to readers who do not see them.

const FIGURES = 2;

/** Whether the page is dark: what JupyterLab or VS Code say, else what the reader prefers. */
const isDark = (preferred) => {
  const { jpThemeLight, vscodeThemeKind } = document.body.dataset;
  if (jpThemeLight) return jpThemeLight === "false";
  return vscodeThemeKind ? !vscodeThemeKind.includes("light") : preferred.matches;
};

const isDrawn = (figure) => figure.querySelector(".xtick") !== null;

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

/** What follows a view, from when it stands in the page; the answer ends it. */
const follow = (view, model) => {
  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const paint = () => {
    const dark = isDark(preferred);
    view.classList.toggle("pslab-dark", dark);
    model.set({ dark, shown: true });
    model.save_changes();
  };
  const themes = new MutationObserver(paint);
  themes.observe(document.body, { attributeFilter: ["data-jp-theme-light", "data-vscode-theme-kind"] });
  preferred.addEventListener("change", paint);

  const id = `pslab-${crypto.randomUUID?.() ?? Math.random()}`;
  const controls = new MutationObserver(() => describe(view, id));
  controls.observe(view, { subtree: true, childList: true, attributeFilter: ["class"] });

  // plotly follows the window alone, but a sidebar makes a cell narrow as well; and a figure whose height was changed
  // has kept the width that it had then
  const fit = () => {
    for (const { layout } of view.querySelectorAll(".js-plotly-plot")) delete layout?.width;
    window.dispatchEvent(new Event("resize"));
  };
  const sizes = new ResizeObserver(() => requestAnimationFrame(fit));
  sizes.observe(view);

  paint();
  describe(view, id);
  return () => {
    preferred.removeEventListener("change", paint);
    [themes, controls, sizes].forEach((each) => each.disconnect());
  };
};

export default {
  render({ model, el }) {
    let end = null, frame = 0;
    const begin = () => {
      const view = el.closest(".pslab-live");
      // before its own a figure's element holds an empty one, without ticks, which loses what is sent to it
      const drawn = view?.isConnected ? [...view.querySelectorAll(".js-plotly-plot")].filter(isDrawn) : [];
      if (drawn.length >= FIGURES) end = follow(view, model);
      else frame = requestAnimationFrame(begin);
    };
    begin();
    return () => {
      cancelAnimationFrame(frame);
      end?.();
    };
  },
};
