"""Resources of a step: what is given again is what Dagster would build."""

from __future__ import annotations

from dagster._core.definitions.scoped_resources_builder import ScopedResourcesBuilder

from cabs_dagster import step_resources


def test_the_same_resources_are_built_once() -> None:
    step_resources.install()
    resources = {"cabs": object(), "io_manager": object()}
    builder = ScopedResourcesBuilder(resources)
    built = builder.build({"cabs"})
    assert built is builder.build({"cabs"}) and built is ScopedResourcesBuilder(resources).build({"cabs"})
    own = step_resources._build(builder, {"cabs"})
    assert tuple(built) == tuple(own) and built._fields == own._fields == ("cabs",)
    assert built.cabs is resources["cabs"] and built.original_resource_dict == own.original_resource_dict


def test_other_names_or_resources_are_built_afresh() -> None:
    step_resources.install()
    resources = {"cabs": object(), "io_manager": object()}
    built = ScopedResourcesBuilder(resources).build({"cabs"})
    assert set(ScopedResourcesBuilder(resources).build({"cabs", "io_manager"})._fields) == set(resources)
    assert ScopedResourcesBuilder(resources).build(None)._fields == ()
    others = {"cabs": object(), "io_manager": object()}
    assert ScopedResourcesBuilder(others).build({"cabs"}).cabs is others["cabs"]
    assert ScopedResourcesBuilder(resources).build({"cabs"}).cabs is built.cabs
