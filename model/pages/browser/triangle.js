// How many weights the first n queries of a map have: each sees itself and what comes before it.
export const triangle = (n) => (n * (n + 1)) / 2;
