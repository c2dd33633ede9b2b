"""The chain: what each stage does with the artifacts before it. One module per stage, named as in
`artifacts.stages`.

Each has `build(chain, target, folder, inputs, options)`: it reads the folders of its `inputs` ({stage:
folder}, verified), fills `folder`, and returns its `Summary`, which the record keeps and whose `shown()` is
for people. `inputs` reads what earlier stages wrote, `pages` makes report and leaderboard, `page_server`
serves them. No Dagster in here: the assets are shells around this package.
"""
