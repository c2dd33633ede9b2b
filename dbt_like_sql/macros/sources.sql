{# A stage that has not run has no files, an older file lacks newer columns: a source always has the columns of schema.yml. #}
{% macro source(source_name, table_name) %}
  {%- set relation = builtins.source(source_name, table_name) -%}
  {%- set known = graph.sources.values() | selectattr("source_name", "equalto", source_name)
        | selectattr("name", "equalto", table_name) | first if execute -%}
  {%- if known and relation.external -%}
    (SELECT {{ known.columns | join(", ") }} FROM (SELECT
    {%- for column in known.columns.values() %} CAST(NULL AS {{ column.data_type }}) AS {{ column.name }}{{ "," if not loop.last }}{% endfor %}
    WHERE false UNION ALL BY NAME FROM {{ relation }}))
  {%- else -%}
    {{ relation }}
  {%- endif -%}
{% endmacro %}
