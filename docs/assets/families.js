// A filter over long tables: the table of model types, by name and by result.
document.addEventListener("DOMContentLoaded", () => {
  const table = [...document.querySelectorAll("article table")].find((one) => one.rows.length > 100);
  if (!table) return;
  const label = document.createElement("label"), field = document.createElement("input"), told = document.createElement("output");
  label.textContent = "Filter: ";
  field.type = "search"; field.placeholder = "llama, refused, cross …";
  label.append(field, " ", told);
  const box = table.closest(".md-typeset__scrollwrap") || table;
  box.parentNode.insertBefore(label, box);
  const rows = [...table.tBodies[0].rows];
  rows.forEach((row) => { row.dataset.state = row.cells[3] ? row.cells[3].textContent.trim() : ""; });
  const show = () => {
    const wanted = field.value.trim().toLowerCase().split(/\s+/);
    let left = 0;
    rows.forEach((row) => {
      row.hidden = !wanted.every((word) => row.textContent.toLowerCase().includes(word));
      left += row.hidden ? 0 : 1;
    });
    told.textContent = `${left} of ${rows.length} types`;
  };
  field.addEventListener("input", show);
  show();
});
