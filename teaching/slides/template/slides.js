// Starts reveal.js and, once the formulas are drawn, makes the text of a slide that is too tall smaller until it fits.
(function () {
  "use strict";
  const WIDTH = 1280, HEIGHT = 720, FOOT = 24, SMALLEST = 0.5;

  function narrow(formula) {
    // A display with a tag has a least width, by which it may stick out; one without is as wide as its drawing.
    const room = formula.parentElement.clientWidth;
    const width = Math.max(formula.scrollWidth, formula.offsetWidth);
    if (width > room) { formula.style.fontSize = Math.max(60, Math.floor(100 * room / width)) + "%"; }
  }

  function fit(slide) {
    slide.querySelectorAll("mjx-container[display='true']").forEach(narrow);
    for (let size = 1; size >= SMALLEST; size -= 0.05) {
      slide.style.fontSize = size === 1 ? "" : size.toFixed(2) + "em";
      if (slide.scrollHeight <= HEIGHT - FOOT && slide.scrollWidth <= WIDTH) { return; }
    }
    slide.classList.add("overflows");
  }

  Reveal.initialize({
    width: WIDTH, height: HEIGHT, margin: 0.04, center: false, hash: true, slideNumber: "c/t", controls: true,
    progress: true, transition: "none", viewDistance: 1000, mobileViewDistance: 1000, plugins: [RevealNotes]
  }).then(function () { return MathJax.startup.promise; }).then(function () {
    document.querySelectorAll(".slides section:not(.stack)").forEach(fit);
    Reveal.layout();
    document.documentElement.dataset.ready = "true";
  });
})();
