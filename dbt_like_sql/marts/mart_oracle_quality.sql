-- Every figure in the oracles' files, flattened: their card (errors on validation) and diagnostics (errors on test).
WITH files AS (
  SELECT filename, content, 'card' AS file FROM {{ source('stages', 'oracle_card') }}
  UNION ALL
  SELECT filename, content, 'diagnostics' AS file FROM {{ source('stages', 'oracle_diagnostics') }}
)
SELECT
  regexp_extract(f.filename, 'oracles/([^/]+)/[^/]+$', 1) AS pool,
  f.file,
  ltrim(ltrim(j.fullkey, '$'), '.') AS key,
  try_cast(j.atom AS DOUBLE) AS value,
  CASE WHEN j.type = 'VARCHAR' THEN json_extract_string(j.atom, '$') ELSE j.atom::VARCHAR END AS text
FROM files AS f, json_tree(f.content) AS j
WHERE j.atom IS NOT NULL AND NOT contains(j.fullkey, 'training.epochs')
ORDER BY pool, f.file, key
