"""The beginning of the sentence that stands for an answer where a pool has none now."""

#: The rest of the sentence says why, such as which check its data failed.
NO_ANSWER = "No answer: "
