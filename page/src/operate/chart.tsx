// A figure with its last minutes as a line.

const WIDTH = 240;
const HEIGHT = 48;

export function Chart({ title, value, unit = "", points }: { title: string; value: number; unit?: string; points: number[] }) {
  const top = Math.max(1, ...points);
  const step = WIDTH / Math.max(1, points.length - 1);
  const place = (point: number, at: number) => (at * step).toFixed(1) + " " + (HEIGHT - 3 - (point / top) * (HEIGHT - 6)).toFixed(1);
  const line = points.map((point, at) => (at ? "L" : "M") + place(point, at)).join("");
  const shown = value >= 100 || Number.isInteger(value) ? Math.round(value).toLocaleString("en-US") : value.toFixed(1);
  return (
    <figure class="chart">
      <figcaption>{title}</figcaption>
      <p class="figure">{shown}{unit && <span class="unit"> {unit}</span>}</p>
      <svg viewBox={"0 0 " + WIDTH + " " + HEIGHT} preserveAspectRatio="none" aria-hidden="true" focusable="false">
        {points.length > 1 && <path class="area" d={line + "L" + WIDTH + " " + HEIGHT + "L0 " + HEIGHT + "Z"} />}
        {points.length > 1 && <path class="line" d={line} />}
      </svg>
    </figure>
  );
}
