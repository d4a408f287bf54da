// A click on a line marks all lines, of source and PTX, that belong to the same line of the source.
document.addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-loc]");
  if (!row || event.target.closest("a")) return;
  const again = row.classList.contains("linked");
  document.querySelectorAll("tr.linked").forEach((other) => other.classList.remove("linked"));
  if (again) return;
  document.querySelectorAll(`tr[data-loc="${row.dataset.loc}"]`).forEach((other) => other.classList.add("linked"));
});
