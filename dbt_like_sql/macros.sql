-- Functions shared by the models, beside regime_of(rho), which comes from the catalog's table of cost regimes.
CREATE OR REPLACE TEMP MACRO standard_error_of(x) AS stddev_samp(x) / sqrt(count(x));
