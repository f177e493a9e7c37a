/* What scrolls can be scrolled by keyboard: a box that is wider than its room gets a tab stop, and loses it again. */
(() => {
  const boxes = ".bd-article :is(pre, table, div.math, span.math, mjx-container, .output, .cell_output, dt.sig, .text_html)";
  const update = () => {
    for (const box of document.querySelectorAll(boxes)) {
      const style = getComputedStyle(box);
      const scrolls = [style.overflowX, style.overflowY].some((value) => value === "auto" || value === "scroll");
      const wide = box.scrollWidth > box.clientWidth && style.display !== "inline";
      const high = box.scrollHeight > box.clientHeight && style.display !== "inline";
      if (scrolls && (wide || high)) {
        box.tabIndex = 0;
        box.dataset.scrolls = "";
      } else if ("scrolls" in box.dataset) {
        box.removeAttribute("tabindex");
        delete box.dataset.scrolls;
      }
    }
    document.documentElement.dataset.scrollsAt = innerWidth; // the tests wait for it
  };
  const later = () => { clearTimeout(later.timer); later.timer = setTimeout(update, 100); };
  addEventListener("load", () => {
    (window.MathJax?.startup?.promise ?? Promise.resolve()).then(update);
    addEventListener("resize", later);
    document.addEventListener("toggle", later, true); // an unfolded solution
    document.addEventListener("click", later);
  });
})();
