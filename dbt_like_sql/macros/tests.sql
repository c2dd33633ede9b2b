{# Tests beside dbt's own: each is a query for the rows that are wrong. The embedded runner renders these very macros. #}

{% macro test_unique_combination(model, columns) %}
SELECT {{ columns | join(", ") }}, count(*) AS times
FROM {{ model }}
GROUP BY {{ columns | join(", ") }}
HAVING count(*) > 1
{% endmacro %}

{# Of a column the expression is what follows its name: `>= 0`. #}
{% macro test_expression(model, expression, column_name="") %}
SELECT * FROM {{ model }} WHERE NOT ({{ column_name }} {{ expression }})
{% endmacro %}
