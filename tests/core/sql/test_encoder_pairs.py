"""Encoder robustness compares like with like."""

from fake_replays import fake_pool, write_pool

from dbt_like_sql import build_all, read_model


def pools(tmp_path, rhos_of_second, **second):
    policies = ["random", "lin_ucb"]
    write_pool(tmp_path, fake_pool("a"), n=10, rhos=(0.0, 500.0, 900.0), policies=policies)
    pool = fake_pool("b", **({"encoder": {"name": "tfidf-svd"}} | second))
    write_pool(tmp_path, pool, n=10, rhos=rhos_of_second, policies=policies, seed=1)
    build_all(tmp_path, database=False)
    return read_model("mart_encoder_robustness", tmp_path)


def test_same_question_same_rhos(tmp_path):
    mart = pools(tmp_path, (0.0, 500.0, 900.0))
    assert len(mart) == 2 * 2 * 4 and set(mart["encoder"]) == {"all-MiniLM-L6-v2", "tfidf-svd"}


def test_a_pool_with_fewer_rhos_is_compared_only_where_it_has_them_all(tmp_path):
    mart = pools(tmp_path, (0.0, 900.0))
    assert set(mart["regime"]) == {"low", "high"}


def test_another_split_is_another_question(tmp_path):
    assert pools(tmp_path, (0.0, 500.0, 900.0), split={"split_seed": 5}).empty
