() => {  // everything of the live view that has letters or lines: its contrast to what is behind it, and its place
    const view = document.querySelector(".pslab-live"), own = view.getBoundingClientRect();
    const parse = text => (text.match(/[0-9.]+/g) || [0, 0, 0, 0]).map(Number);
    const linear = part => part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4;
    const light = ([red, green, blue]) => 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue);
    const contrast = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
    const behind = each => {
        for (; each; each = each.parentElement) {
            const found = parse(getComputedStyle(each).backgroundColor);
            if (found.length < 4 || found[3] > 0.5) return found;
        }
        return [255, 255, 255];
    };
    const kinds = "button, input, select, label, td, th, p, .widget-label, .pslab-error, svg text, path.js-line, .main-svg";
    const shown = each => each.checkVisibility() && each.getBoundingClientRect().width > 0 && !each.closest(".hoverlayer");
    return [...view.querySelectorAll(kinds)].filter(shown).map(each => {
        const style = getComputedStyle(each), place = each.getBoundingClientRect();
        const colour = each.matches("path") ? style.stroke : each.closest("svg") ? style.fill : style.color;
        return {
            what: `${each.tagName} ${each.getAttribute("class")} ${(each.textContent || each.value || "").trim()}`,
            text: each.textContent.trim() !== "" || "value" in each,
            line: each.matches("path"),
            exempt: each.disabled || each.matches(".main-svg, .bartext, .mod-danger, .mod-primary"),
            contrast: contrast(parse(colour), behind(each)),
            over: Math.max(own.left - place.left, place.right - own.right),
        };
    });
}
