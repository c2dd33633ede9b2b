"""The chain: what each stage does with the artifacts before it. One module per stage, named as in
`artifacts.stages`.

Each has `build(chain, target, folder, inputs, options)`: it reads the folders of its `inputs` ({stage:
folder}, verified), fills `folder`, and returns a JSON-able summary for the record. Names with a leading
underscore in a summary are for later stages and for display; the rest is shown as figures. `inputs` reads
what earlier stages wrote, `pages` makes report and leaderboard, `page_server` serves them. No Dagster in
here: the assets are shells around this package.
"""
