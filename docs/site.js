// What the theme adds to a page after it is loaded: names for the buttons beside code, keys for wide tables.
let blocks = 0;
new MutationObserver(() => {
  for (const nav of document.querySelectorAll("nav.md-code__nav:not([aria-label])")) nav.setAttribute("aria-label", `Code ${++blocks}`);
  for (const wide of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) wide.tabIndex = 0;
}).observe(document.documentElement, { childList: true, subtree: true });
