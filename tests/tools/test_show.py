"""`md.show`: a tensor's split in words and as a picture."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

import meshdsl as md
from meshdsl.tools.show import show
from tests.helpers import data, dims
from tests.tools.test_page import document_of

MESH = {"data": 2, "model": 4}
X = dims(batch=8, length=6, d_model=16)


def placed(mesh, *spec, array=None) -> md.Tensor:
    array = jnp.ones((8, 6, 16), jnp.bfloat16) if array is None else array
    sharding = NamedSharding(mesh, PartitionSpec(*spec))
    if isinstance(array, jax.ShapeDtypeStruct):
        return md.Tensor(jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding), X)
    return md.Tensor(jax.device_put(array, sharding), X)


def test_text_says_sizes_axes_and_who_holds_what():
    text = repr(show(placed(md.make_mesh(MESH), "data", None, "model"), "x"))
    assert text.splitlines()[:6] == [
        "x[batch_data, length, d_model_model] bfloat16, 192 B of 1.5 KiB on a device",
        "  dim      whole  on a device  split over",
        "  batch        8            4  data=2",
        "  length       6            6",
        "  d_model     16            4  model=4",
        "  mesh data=2 model=4: 8 parts",
    ]
    assert "  batch 4:8, length 0:6, d_model 12:16  cpu 7" in text
    assert len(text.splitlines()) == 6 + 9


def test_devices_with_the_same_part_stand_together():
    shown = show(placed(md.make_mesh(MESH), "data"))
    assert [devices for _, devices in shown.parts] == [
        ("cpu 0", "cpu 1", "cpu 2", "cpu 3"),
        ("cpu 4", "cpu 5", "cpu 6", "cpu 7"),
    ]
    assert "2 parts, each on 4 of 8 devices" in repr(shown)


def test_picture_says_the_same():
    shown = show(placed(md.make_mesh(MESH), "data", None, "model"), "x")
    document = document_of(shown._repr_html_())
    assert document["tensor"]["bytes"] == 192 and document["mesh"] == [["data", 2], ["model", 4]]
    assert [(part, tuple(on)) for part, on in document["parts"]] == list(shown.parts)


def test_shapes_on_a_mesh_without_devices_name_places():
    mesh = AbstractMesh((2, 4), ("data", "model"))
    shown = show(
        placed(mesh, ("data", "model"), array=jax.ShapeDtypeStruct((8, 6, 16), jnp.float32))
    )
    assert shown.parts[5] == ("batch 5:6, length 0:6, d_model 0:16", ("data=1 model=1",))
    assert "Tensor[batch_data_model, length, d_model] float32, 384 B of 3.0 KiB" in repr(shown)


def test_model_that_was_only_shaped():
    layout = md.Layout(rules=("batch -> data", "d_model -> model"), mesh=MESH)
    mesh = md.make_mesh(layout)
    shaped = jax.eval_shape(lambda: md.tensor(jnp.ones((8, 6, 16)), X))
    where = md.shardings(shaped, layout, mesh)
    given = jax.tree.map(
        lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shaped, where
    )
    assert "Tensor[batch_data, length, d_model_model]" in repr(show(given))


def test_inside_a_lowering_it_says_what_is_pending():
    said = []

    def f(x):
        said.append(repr(show(md.sum(x, "d_model"), "s")))
        return md.sum(x, "d_model")

    layout = md.Layout(rules=("batch -> data", "d_model -> model"), mesh=MESH)
    md.lower(f, layout)(data(*X))
    assert "s[batch_data, length] float32" in said[-1]
    assert "data=1 model=3" in said[-1]
    assert "every device holds a term of a sum over model that has not been taken yet" in said[-1]


def test_large_meshes_are_not_listed():
    mesh = AbstractMesh((16, 8), ("data", "model"))
    b, d = dims(batch=64, d_model=16)
    x = md.Tensor(
        jax.ShapeDtypeStruct(
            (64, 16), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data"))
        ),
        (b, d),
    )
    assert show(x).parts == ()
    assert "16 parts, each on 8 of 128 devices" in repr(show(x))


def test_one_device_and_scalars():
    assert repr(show(md.tensor(1.0, ()))) == "Tensor[] float32, 4 B of 4 B on a device"
    plain = show(data(*X))
    assert "3.0 KiB of 3.0 KiB" in repr(plain) and "part" not in repr(plain)
    assert document_of(plain._repr_html_())["mesh"] == []
    assert document_of(show(md.tensor(1.0, ()))._repr_html_())["tensor"]["dims"] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "show: a Tensor is shown, not 3"),
        (
            jnp.ones(3),
            (
                "show: a Tensor is shown, not of type ArrayImpl; give an array dims with "
                "md.tensor(array, dims)"
            ),
        ),
        (
            md.Tensor("x", ()),
            "show: this Tensor holds 'x', not an array; give it an array or a ShapeDtypeStruct",
        ),
    ],
)
def test_only_tensors_are_shown(given, message):
    with pytest.raises(md.MeshDSLError) as error:
        show(given)
    assert str(error.value) == message
