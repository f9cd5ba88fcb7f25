"""Writes digits.csv: scikit-learn's copy of the UCI handwritten digits, 64 integer features and a label a row.

Invariant: rows keep scikit-learn's order, so that a split by row index is the same everywhere.
"""

from pathlib import Path

from sklearn.datasets import load_digits


def main() -> None:
    digits = load_digits()
    rows = [",".join([*(f"p{row}{column}" for row in range(8) for column in range(8)), "label"])]
    for features, label in zip(digits.data, digits.target, strict=True):
        rows.append(",".join(str(int(number)) for number in [*features, label]))
    target = Path(__file__).with_name("digits.csv")
    target.write_text("\n".join(rows) + "\n", encoding="ascii", newline="\n")
    print(f"{target.name}: {len(rows) - 1} rows")


if __name__ == "__main__":
    main()
