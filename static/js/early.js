// Runs before the first paint: styles that only make sense with script hang on `.js`.
document.documentElement.classList.add("js");
