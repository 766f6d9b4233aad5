// Icons: strokes in a box of 24, in the color of the text beside them.

const PATHS: Record<string, string> = {
  ask: "M4 5h16v11H9l-5 4z",
  compare: "M4 5h7v14H4zM13 5h7v14h-7z",
  explore: "M8 6a2 2 0 1 1-4 0 2 2 0 0 1 4 0zM20 9a2 2 0 1 1-4 0 2 2 0 0 1 4 0zM11 18a2 2 0 1 1-4 0 2 2 0 0 1 4 0zM8 6.4l8 2.1M6.6 8l2 8M16.7 10.6l-6 6",
  operate: "M4 19V5M4 19h16M8 15l3-4 3 2 5-7",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  share: "M12 15V4M8 8l4-4 4 4M5 13v7h14v-7",
  retry: "M20 11a8 8 0 1 0-2 6M20 4v7h-7",
  good: "M7 11v9H4v-9zM7 11l4-8c2 0 3 1 2 4l-1 3h7l-2 10H7",
  bad: "M17 13V4h3v9zM17 13l-4 8c-2 0-3-1-2-4l1-3H5l2-10h10",
  close: "M6 6l12 12M18 6L6 18",
  plus: "M12 5v14M5 12h14",
  open: "M4 7h5l2 2h9v10H4z",
  menu: "M4 7h16M4 12h16M4 17h16",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
  search: "M11 4a7 7 0 1 1 0 14 7 7 0 0 1 0-14M16 16l4 4",
  file: "M6 3h8l4 4v14H6zM14 3v4h4",
  link: "M10 14l4-4M9 11l-3 3a3 3 0 0 0 4 4l3-3M15 13l3-3a3 3 0 0 0-4-4l-3 3",
};

export function Icon({ name }: { name: keyof typeof PATHS & string }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" width="20" height="20" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

// The sign of the page: a waymark painted on a tree, two bars and the way between them.
export function Sign() {
  return (
    <svg class="sign" viewBox="0 0 32 32" width="28" height="28" aria-hidden="true" focusable="false">
      <rect class="board" x="3" y="2" width="26" height="28" rx="6" />
      <path class="way" d="M10 24c0-5 12-4 12-9s-12-2-12-7" />
      <circle class="dot" cx="10" cy="24" r="2.6" />
      <circle class="goal" cx="10" cy="8" r="2.6" />
    </svg>
  );
}
