-- Functions shared by the models, beside those of functions.py.
CREATE OR REPLACE TEMP MACRO standard_error_of(x) AS stddev_samp(x) / sqrt(count(x));
