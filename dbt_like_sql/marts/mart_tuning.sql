-- Every figure of the tuning file (validation split only), flattened: one row per pool and JSON path.
SELECT
  regexp_extract(f.filename, 'tuning/([^/]+)/[^/]+$', 1) AS pool,
  ltrim(ltrim(j.fullkey, '$'), '.') AS key,
  try_cast(j.atom AS DOUBLE) AS value,
  CASE WHEN j.type = 'VARCHAR' THEN json_extract_string(j.atom, '$') ELSE j.atom::VARCHAR END AS text
FROM {{ source('stages', 'tuning') }} AS f, json_tree(f.content) AS j
WHERE j.atom IS NOT NULL
ORDER BY pool, key
