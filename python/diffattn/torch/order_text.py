"""Nodes of the order of elements (order_node.py) as loops, in text."""

from __future__ import annotations

import re

from .attention_text import sizes_of

#: What both forms begin with: %held says how many elements of a row's keys and places wait.
_BEGIN = """\
%zero = arith.constant 0 : index
%one = arith.constant 1 : index
%rows = tensor.dim $x, %zero : $x_type
%size = tensor.dim $x, %one : $x_type
%made = tensor.empty($made_sizes) : $made_type
%no_keys = tensor.empty($held_sizes) : $keys
%no_places = tensor.empty($held_sizes) : $places
"""

#: Each element goes to its place among the first ones so far, and those behind it move on.
_FEW = """
%first = arith.constant $first : index
%worst = arith.constant $worst : index
%false = arith.constant false
$result, %last_keys, %last_places = scf.for %row = %zero to %rows step %one iter_args(%y = %made, %row_keys = %no_keys, %row_places = %no_places) -> ($made_type, $keys, $places) {
  %found:2 = scf.for %i = %zero to %size step %one iter_args(%keys = %row_keys, %places = %row_places) -> ($keys, $places) {
    %element = tensor.extract $x[%row, %i] : $x_type
    $widen
    %place = arith.index_cast %i : index to i64
    %last = tensor.extract %keys[%worst] : $keys
    %grows = arith.cmpi ult, %i, %first : index
    $precedes(%beats, %key, %last)
    %comes = arith.ori %grows, %beats : i1
    %after:2 = scf.if %comes -> ($keys, $places) {
      %end = arith.minui %i, %first : index
      %moved:5 = scf.for %k = %zero to %end step %one iter_args(%held = %key, %held_place = %place, %moves = %false, %k_keys = %keys, %k_places = %places)
          -> ($key, i64, i1, $keys, $places) {
        %other = tensor.extract %k_keys[%k] : $keys
        %other_place = tensor.extract %k_places[%k] : $places
        $precedes(%before, %held, %other)
        %swaps = arith.ori %moves, %before : i1
        %here = arith.select %swaps, %held, %other : $key
        %here_place = arith.select %swaps, %held_place, %other_place : i64
        %there = arith.select %swaps, %other, %held : $key
        %there_place = arith.select %swaps, %other_place, %held_place : i64
        %new_keys = tensor.insert %here into %k_keys[%k] : $keys
        %new_places = tensor.insert %here_place into %k_places[%k] : $places
        scf.yield %there, %there_place, %swaps, %new_keys, %new_places : $key, i64, i1, $keys, $places
      }
      %grown:2 = scf.if %grows -> ($keys, $places) {
        %more_keys = tensor.insert %moved#0 into %moved#3[%i] : $keys
        %more_places = tensor.insert %moved#1 into %moved#4[%i] : $places
        scf.yield %more_keys, %more_places : $keys, $places
      } else {
        scf.yield %moved#3, %moved#4 : $keys, $places
      }
      scf.yield %grown#0, %grown#1 : $keys, $places
    } else {
      scf.yield %keys, %places : $keys, $places
    }
    scf.yield %after#0, %after#1 : $keys, $places
  }
  %written = scf.for %k = %zero to %first step %one iter_args(%z = %y) -> ($made_type) {
    %at = tensor.extract %found#1[%k] : $places
    %new = tensor.insert %at into %z[%row, %k] : $made_type
    scf.yield %new : $made_type
  }
  scf.yield %written, %found#0, %found#1 : $made_type, $keys, $places
}
"""

#: A merge sort: each pass merges runs of one half of the keys and places to the other.
_ALL = """
%two = arith.constant 2 : index
%bits = arith.constant 64 : index
%least_size = arith.maxui %size, %one : index
%worst = arith.subi %least_size, %one : index
%worst_bits = arith.index_cast %worst : index to i64
%zeros = math.ctlz %worst_bits : i64
%unused = arith.index_cast %zeros : i64 to index
%passes = arith.subi %bits, %unused : index
%half = arith.remui %passes, %two : index
$result, %last_keys, %last_places = scf.for %row = %zero to %rows step %one iter_args(%y = %made, %row_keys = %no_keys, %row_places = %no_places) -> ($made_type, $keys, $places) {
  %begun:2 = scf.for %i = %zero to %size step %one iter_args(%keys = %row_keys, %places = %row_places) -> ($keys, $places) {
    %element = tensor.extract $x[%row, %i] : $x_type
    $widen
    %place = arith.index_cast %i : index to i64
    %new_keys = tensor.insert %key into %keys[%zero, %i] : $keys
    %new_places = tensor.insert %place into %places[%zero, %i] : $places
    scf.yield %new_keys, %new_places : $keys, $places
  }
  %found:2 = scf.for %pass = %zero to %passes step %one iter_args(%keys = %begun#0, %places = %begun#1) -> ($keys, $places) {
    %width = arith.shli %one, %pass : index
    %both = arith.shli %two, %pass : index
    %source = arith.remui %pass, %two : index
    %target = arith.subi %one, %source : index
    %merged:2 = scf.for %low = %zero to %size step %both iter_args(%pair_keys = %keys, %pair_places = %places) -> ($keys, $places) {
      %low_end = arith.addi %low, %width : index
      %middle = arith.minui %low_end, %size : index
      %high_end = arith.addi %middle, %width : index
      %high = arith.minui %high_end, %size : index
      %taken:4 = scf.for %k = %low to %high step %one iter_args(%left = %low, %right = %middle, %k_keys = %pair_keys, %k_places = %pair_places)
          -> (index, index, $keys, $places) {
        %left_at = arith.minui %left, %worst : index
        %right_at = arith.minui %right, %worst : index
        %left_key = tensor.extract %k_keys[%source, %left_at] : $keys
        %right_key = tensor.extract %k_keys[%source, %right_at] : $keys
        %has_left = arith.cmpi ult, %left, %middle : index
        %has_right = arith.cmpi ult, %right, %high : index
        $precedes(%before, %right_key, %left_key)
        %wins = arith.andi %has_right, %before : i1
        %is_right = arith.select %has_left, %wins, %has_right : i1
        %key = arith.select %is_right, %right_key, %left_key : $key
        %at = arith.select %is_right, %right_at, %left_at : index
        %place = tensor.extract %k_places[%source, %at] : $places
        %right_step = arith.index_castui %is_right : i1 to index
        %left_step = arith.subi %one, %right_step : index
        %next_left = arith.addi %left, %left_step : index
        %next_right = arith.addi %right, %right_step : index
        %new_keys = tensor.insert %key into %k_keys[%target, %k] : $keys
        %new_places = tensor.insert %place into %k_places[%target, %k] : $places
        scf.yield %next_left, %next_right, %new_keys, %new_places : index, index, $keys, $places
      }
      scf.yield %taken#2, %taken#3 : $keys, $places
    }
    scf.yield %merged#0, %merged#1 : $keys, $places
  }
  %written = scf.for %k = %zero to %size step %one iter_args(%z = %y) -> ($made_type) {
    %at = tensor.extract %found#1[%half, %k] : $places
    %new = tensor.insert %at into %z[%row, %k] : $made_type
    scf.yield %new : $made_type
  }
  scf.yield %written, %found#0, %found#1 : $made_type, $keys, $places
}
"""

_INTEGERS = "%made = arith.cmpi slt, %less, %more : $key"
_FLOATS = """%made_beyond = arith.cmpf ult, %less, %more : $key
%made_number = arith.cmpf oeq, %less, %less : $key
%made = arith.andi %made_beyond, %made_number : i1"""


def order_op(spec: tuple[int, int], number: str, values: list[tuple[str, str]], result: str, result_type: str) -> list[str]:
    """The lines that make `result` of rows. `spec`: how many elements come first, or 0 for all, and whether the greatest one does."""
    first, falls = spec
    [(x, x_type)] = values
    element = sizes_of(x_type)[-1]
    key = "f32" if element in ("f16", "bf16") else element
    held = str(first) if first else "2x?"
    made_sizes = [value for value, size in zip(("%rows", "%size"), sizes_of(result_type)) if size == "?"]

    def precedes(match) -> str:
        made, a, b = match.groups()
        less, more = (b, a) if falls else (a, b)
        form = _INTEGERS if key.startswith("i") else _FLOATS
        return form.replace("%made", made).replace("%less", less).replace("%more", more)

    text = re.sub(r"\$precedes\((%\w+), (%\w+), (%\w+)\)", precedes, _BEGIN + (_FEW if first else _ALL))
    text = text.replace("$made_sizes", ", ".join(made_sizes)).replace("$held_sizes", "" if first else "%size")
    text = text.replace("%element", "%key").replace("$widen", "") if key == element else text.replace("$widen", f"%key = arith.extf %element : {element} to f32")
    # The values of the loops get names of this node's own.
    text = re.sub(r"%(?=[a-z])", f"%order_{number}_", text)
    named = {"x": x, "x_type": x_type, "key": key, "keys": f"tensor<{held}x{key}>", "places": f"tensor<{held}xi64>", "made_type": result_type,
             "first": str(first), "worst": str(first - 1), "result": result}
    return re.sub(r"\$(\w+)", lambda match: named[match[1]], text).splitlines()
