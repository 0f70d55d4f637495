// What the theme leaves out for people who do not use a mouse, or who hear the page.
addEventListener("DOMContentLoaded", () => {
  for (const caption of document.querySelectorAll("p.caption[role=heading]")) caption.setAttribute("aria-level", "2");
  // what scrolls can be reached by the keyboard
  for (const box of document.querySelectorAll("pre, .table-wrapper, .sig")) box.tabIndex = 0;
  // a long signature is a list of its parameters, without terms
  for (const part of document.querySelectorAll(".sig dl, .sig dd")) part.setAttribute("role", "presentation");
});
