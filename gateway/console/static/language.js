// The language of the pages, and their texts in it.
import { words } from "./words.js";

export const LANGUAGES = { en: "English", zh: "中文" };
const STORAGE_KEY = "language";

export const language = initialLanguage();
const isChinese = language === "zh";

/** Separator between the members of a list. */
export const listSeparator = isChinese ? "、" : ", ";

/** Units of a duration, each with its space. */
export const durationUnits = isChinese
  ? { hours: " 小时", minutes: " 分", seconds: " 秒" }
  : { hours: " h", minutes: " min", seconds: " s" };

document.documentElement.lang = isChinese ? "zh-CN" : "en";

/** The language that the user chose before, otherwise the browser's. */
function initialLanguage() {
  const stored = storedLanguage();
  if (stored) return Object.hasOwn(LANGUAGES, stored) ? stored : "en";
  return navigator.language.startsWith("zh") ? "zh" : "en";
}

function storedLanguage() {
  try {
    return localStorage.getItem(STORAGE_KEY);
  } catch {
    return null; // private browsing
  }
}

/** Changes the language and loads the page again. */
export function chooseLanguage(code) {
  try {
    localStorage.setItem(STORAGE_KEY, code);
  } catch {
    // Private browsing: the choice cannot be stored.
  }
  location.reload();
}

/** The text of a key in the user's language, with each {name} replaced by the value of that name. */
export function translate(key, values = {}) {
  const text = words[language][key] ?? words.en[key] ?? key;
  return text.replace(/\{(\w+)\}/g, (_, name) => values[name] ?? "");
}

/** A text of a component's description in the user's language, if the vendor gives one: "title_en". */
export const textIn = (described, field) =>
  described[`${field}_${language}`] ?? described[field] ?? "";

/** The text for a state or another fixed word of the API; words without a text are returned as they are. */
export const apiWord = (word) => words[language][`=${word}`] ?? word;

/** The name of a step of a test, or of a check of a plan. */
export const stepName = (step) => apiWord(`step ${step}`).replace(/^step /, "");
