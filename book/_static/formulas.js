/* Formulas are drawn a few at a time, what the reader sees first, so that the page answers while they appear. */
(() => {
  const STRETCH = 50; // milliseconds of drawing without a pause, too short to be felt
  if (!window.MathJax) return; // a page without formulas

  const isSeen = (node) => {
    const box = node.getBoundingClientRect();
    return box.bottom > 0 && box.top < innerHeight;
  };

  async function draw() {
    const all = [...document.querySelectorAll(".math")];
    const seen = new Set(all.filter(isSeen));
    const queue = [...seen, ...all.filter((node) => !seen.has(node))];
    for (let count = 4; queue.length; ) {
      const next = queue.splice(0, count), begin = performance.now();
      await MathJax.typesetPromise(next);
      const took = performance.now() - begin;
      count = Math.max(1, Math.round(count * Math.min(2, STRETCH / took)));
      await new Promise((go) => setTimeout(go)); // what the reader does comes first
    }
    await MathJax.typesetPromise(); // and whatever stands outside of Sphinx's own elements
  }

  MathJax.startup = { typeset: false, pageReady: () => MathJax.startup.defaultPageReady().then(draw) };
})();
