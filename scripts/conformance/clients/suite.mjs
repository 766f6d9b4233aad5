// Runner shared by the clients in JavaScript: each feature is checked once and reported as a line of JSON.

// Address of the server; policy that searches, policy that does not, and embedder, as `/v1/models` names them.
export const [URL_OF_SERVER, SEARCHING, PLAIN, EMBEDDER] = process.argv.slice(2);
export const BASE = `${URL_OF_SERVER}/v1`;
export const KEY = process.env.WAYMARK_API_KEY ?? "none";
export const QUESTION = "Who painted the Mona Lisa?";
export const FOLLOW_UP = "Where was he born?";
export const CITY = "Name a city in Italy and the number of its bridges.";
export const WEATHER = "How is the weather in Rome? Call the function.";

/** Checks the features in the order of the object, and prints a line for each. */
export async function run(features) {
  for (const [feature, check] of Object.entries(features)) {
    const began = Date.now();
    let result = { feature, ok: true, note: null };
    try {
      result.note = (await check()) ?? null;
    } catch (error) {
      console.error(error);
      result = { feature, ok: false, note: String(error).slice(0, 600) };
    }
    console.log(JSON.stringify({ ...result, seconds: (Date.now() - began) / 1000 }));
  }
}
