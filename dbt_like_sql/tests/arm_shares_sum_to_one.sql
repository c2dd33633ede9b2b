-- In every regime the shares of a policy's arms add up to one.
SELECT pool, policy, regime, sum(share) AS total
FROM {{ ref('mart_arm_shares') }}
GROUP BY pool, policy, regime
HAVING abs(sum(share) - 1) > 1e-6
