// What a page of the site becomes on paper. Returns {title, xhtml}: the article as XHTML, with ids and links that hold in one book.
async ({ slug, slugs, address, frames }) => {
  const article = document.querySelector("article.bd-article").cloneNode(false);
  const source = document.querySelector("article.bd-article");
  const at = (count, size) => [...new Set([...Array(count).keys()].map((i) => Math.round((i * (size - 1)) / Math.max(1, count - 1))))];

  // A moving picture is printed as a few of its frames, with what its slider says at each.
  const strips = [];
  for (const slider of source.querySelectorAll(".bvf-slider")) {
    const range = slider.querySelector("input"), image = slider.querySelector("img"), strip = [];
    for (const position of at(frames, Number(range.max) + 1)) {
      range.value = position;
      range.dispatchEvent(new Event("input"));
      strip.push([image.src, slider.querySelector("output").textContent]);
    }
    await image.decode();
    strips.push([slider, strip, image.alt, image.naturalWidth / image.naturalHeight]);
  }
  for (const video of source.querySelectorAll("video")) {
    const strip = [], canvas = document.createElement("canvas");
    video.preload = "auto"; video.pause(); video.load();
    await new Promise((done, fail) => { video.onloadeddata = done; video.onerror = () => fail(new Error("a film does not play")); });
    canvas.width = video.videoWidth; canvas.height = video.videoHeight;
    for (const share of [0, 0.5, 0.95].slice(0, frames)) {
      await new Promise((done) => { video.onseeked = done; video.currentTime = share * video.duration + 1e-3; });
      canvas.getContext("2d").drawImage(video, 0, 0);
      strip.push([canvas.toDataURL("image/png"), `${video.currentTime.toFixed(1)} s`]);
    }
    strips.push([video, strip, video.getAttribute("aria-label") || "", canvas.width / canvas.height]);
  }

  article.innerHTML = source.innerHTML;
  const moving = [...article.querySelectorAll(".bvf-slider, video")];
  const order = [...source.querySelectorAll(".bvf-slider, video")];
  for (const [node, strip, alt, aspect] of strips) {
    const holder = document.createElement("div");
    holder.className = aspect > 1.8 ? "strip tall" : "strip";
    strip.forEach(([src, text], i) => {
      const cell = document.createElement("div"), image = document.createElement("img"), caption = document.createElement("p");
      image.src = src; image.alt = i ? `The same, at ${text}.` : alt; caption.textContent = text;
      cell.append(image, caption); holder.append(cell);
    });
    moving[order.indexOf(node)].replaceWith(holder);
  }

  // What is folded on the page: solutions are printed, the code behind figures is not.
  article.querySelectorAll("details.hide.above-input, script, style, button, .headerlink, .sd-d-none, mjx-assistive-mml, .viewcode-link, .toggle-details__summary")
    .forEach((node) => node.remove());
  article.querySelectorAll("details").forEach((node) => {
    const open = document.createElement("div");
    open.className = "unfolded";
    open.append(...node.childNodes);
    open.querySelectorAll(":scope > summary").forEach((each) => { const p = document.createElement("p"); p.append(...each.childNodes); each.replaceWith(p); });
    node.replaceWith(open);
  });
  article.querySelectorAll(".toggle-hidden, .dropdown").forEach((node) => node.classList.remove("toggle-hidden", "toggle", "dropdown"));

  const named = (key, id) => (id ? `${key}--${id.replace(/[^\w.:-]/g, "_")}` : key);
  const entryOf = (path) => decodeURIComponent(path).replace(/^\//, "").replace(/\.html$/, "");
  article.querySelectorAll("[id]").forEach((node) => { if (!node.closest("mjx-container")) node.id = named(slug, node.id); });
  for (const link of article.querySelectorAll("a")) {
    if (!link.hasAttribute("href") || link.closest("mjx-container")) continue;
    const url = new URL(link.getAttribute("href"), document.baseURI);
    if (url.origin !== address) continue;
    const key = slugs[entryOf(url.pathname)];
    if (key) link.setAttribute("href", `#${named(key, decodeURIComponent(url.hash.slice(1)))}`);
    else link.replaceWith(...link.childNodes);
  }
  article.querySelectorAll("img").forEach((node) => { node.setAttribute("src", new URL(node.getAttribute("src"), document.baseURI).href); });
  article.querySelectorAll("*").forEach((node) => [...node.attributes].forEach((each) => {
    if (/^(data-|on|aria-(?!label)|tabindex|contenteditable)/.test(each.name)) node.removeAttribute(each.name);
  }));
  const section = document.createElement("section");
  section.className = "chapter"; section.id = slug;
  section.append(...article.childNodes);
  return { title: section.querySelector("h1").textContent.trim(), xhtml: new XMLSerializer().serializeToString(section) };
}
