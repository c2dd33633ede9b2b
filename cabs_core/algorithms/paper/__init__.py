"""Figures that the paper published, as data: what the reports and marts put beside ours.

    published.csv   utility and regret by encoder, benchmark, policy and cost regime; `label` is the LaTeX
                    label of the paper's table. Policies carry this project's names
                    (`knn` is the paper's RouterBench row).

Source: Correlation-Aware Contextual Bandits with Surrogate Rewards, section Experiments and its appendix.
The paper's means by model are in `cabs_core.data.outcomes.published`. Caution on `openllm`:
the published score matrix is misaligned between models, so those figures are not a target.
"""
