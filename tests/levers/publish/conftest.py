"""One DLRM, trained by four ranks, published once for all tests: compiling it takes a while."""

import pytest
from four_ranks_save import plain
from publish_shelf import RECIPE, Shelf, four_ranks_save, one_rank_saves


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    """The DLRM is dlrm@1, and with other weights dlrm@2, which is live."""
    folder = tmp_path_factory.mktemp("publish")
    registry, spool = str(folder / "registry"), str(folder / "spool")
    anchor = four_ranks_save(folder / "checkpoints", seed=1, step=39)
    env = {"ETT_REGISTRY": registry, "ETT_DISABLE": "1"}
    shelf = Shelf(spool=spool, registry=registry, anchor=anchor, folder=folder, env=env)
    again = one_rank_saves(folder / "again", plain(seed=2), step=79)
    for path in (anchor, again):
        shelf.add(path, f"{RECIPE}:tiny", name="dlrm")
    said = shelf.ett("work", spool, "--drain", "--poll", "0.1").stderr
    assert "published as dlrm@1, live now" in said
    assert "published as dlrm@2, live now" in said
    return shelf
