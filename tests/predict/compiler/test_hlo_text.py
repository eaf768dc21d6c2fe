"""The parser of compiled programs' text, on lines as TPU, GPU and CPU compilers write them."""

import pytest

from meshdsl.predict.compiler.hlo_text import Array, Module, arrays

TEXT = """HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8,128]{1,0})->f32[8,128]{1,0}}

%fused (p0: f32[8,128]) -> f32[8,128] {
  %p0 = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %double = f32[8,128]{1,0:T(8,128)} add(%p0, %p0)
}

ENTRY %main.4 (x.1: f32[8,128]) -> (f32[8,128], s32[]) {
  %x.1 = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  %copy-start.1 = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%x.1)
  %fusion.7 = f32[8,128]{1,0:T(8,128)} fusion(f32[8,128]{1,0:T(8,128)} %x.1), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/md.f.3/add" source_line=1}, backend_config={"window_config":{"estimated_cycles":"2128","iteration_bounds":["1"]}}
  %constant.2 = s32[] constant(-3)
  ROOT %tuple.3 = (f32[8,128]{1,0:T(8,128)}, /*index=1*/s32[]) tuple(%fusion.7, %constant.2)
}
"""


@pytest.fixture(scope="module")
def module():
    return Module(TEXT)


def test_computations_and_entry(module):
    assert module.entry == "main.4"
    assert [i.name for i in module.computations["main.4"]] == [
        "x.1",
        "copy-start.1",
        "fusion.7",
        "constant.2",
        "tuple.3",
    ]
    assert module.root("main.4").name == "tuple.3"


def test_an_instruction_tells_its_parts(module):
    fusion = module.instructions["fusion.7"]
    assert (
        fusion.opcode,
        fusion.operands,
        fusion.attribute("calls"),
        fusion.attribute("kind"),
    ) == ("fusion", ("x.1",), "fused", "kLoop")
    assert (fusion.scope, fusion.cycles, fusion.bytes) == ("jit(f)/md.f.3/add", 2128, 8 * 128 * 4)
    assert module.called(fusion) == ["fused"]
    assert module.instructions["x.1"].cycles is None
    assert Module(TEXT.replace('"2128"', f'"{2**63 - 1}"')).instructions["fusion.7"].cycles is None
    assert module.constant(module.instructions["constant.2"]) == -3


def test_types_of_operands_are_not_operands(module):
    assert module.instructions["tuple.3"].operands == ("fusion.7", "constant.2")
    assert [a.memory for a in module.instructions["copy-start.1"].results] == [1, 0, 2]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}", [Array("bfloat16", (8, 128), 16, 1)]),
        ("pred[]", [Array("bool", (), 8)]),
        (
            "(s4[3], /*index=1*/f8e4m3fn[2]{0})",
            [Array("int4", (3,), 4), Array("float8_e4m3fn", (2,), 8)],
        ),
        ("f4e2m1fn[4]", [Array("float4_e2m1fn", (4,), 4)]),
        ("s32[<=8]{0}", [Array("int32", (8,), 32)]),
        ("((), (), (s32[1]{0:T(128)S(2)}))", [Array("int32", (1,), 32, 2)]),
        (
            "((f32[4]{0}, token[]), c64[2]{0})",
            [Array("float32", (4,), 32), Array("complex64", (2,), 64)],
        ),
    ],
)
def test_arrays_of_a_type(text, expected):
    assert arrays(text) == expected


NO_TYPES = ["f32[4", "f32<4>", "q7[2]", "f32[4] and more", "f32[99999999999999999999]"]


@pytest.mark.parametrize("text", NO_TYPES)
def test_what_is_no_type_is_an_error(text):
    with pytest.raises(ValueError, match="is no type|is larger than any memory"):
        arrays(text)


def test_bytes_round_up():
    assert arrays("s4[3]")[0].bytes == 2
