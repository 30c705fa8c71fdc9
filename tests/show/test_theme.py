"""The palette can be read in both modes, and every figure is fully painted."""

import pytest

from lab.show import theme


def luminance(colour: str) -> float:
    """WCAG 2.2 relative luminance of #rrggbb."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_measured_as_wcag_does() -> None:
    assert contrast("#FFFFFF", "#000000") == pytest.approx(21.0)
    assert contrast("#FFFFFF", "#767676") == pytest.approx(4.54, abs=0.01)  # the well-known lightest passing grey


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("style", [theme.BASELINE, *theme.STYLES, theme.FIFTH], ids=lambda style: style.role)
def test_a_line_stands_out_from_the_page(mode: theme.Mode, style: theme.Style) -> None:
    roles = theme.ROLES[mode]
    assert contrast(roles[style.role], roles["@surface"]) >= 3.0
    assert contrast(roles[style.text], roles["@surface"]) >= 4.5


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("role", ["@ink", "@muted"])
def test_text_can_be_read(mode: theme.Mode, role: str) -> None:
    assert contrast(theme.ROLES[mode][role], theme.ROLES[mode]["@surface"]) >= 4.5


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("role", ["@tint", "@heat"])
def test_words_can_be_read_on_the_cells_of_a_heat_map(mode: theme.Mode, role: str) -> None:
    roles = theme.ROLES[mode]
    assert contrast(roles["@ink"], roles[role]) >= 4.5
    assert contrast(roles[role], roles["@surface"]) >= 1.4  # the most is told from none


def test_both_modes_paint_the_same_roles() -> None:
    assert theme.ROLES["light"].keys() == theme.ROLES["dark"].keys()


def test_series_differ_without_colour() -> None:
    treatments = (*theme.STYLES, theme.FIFTH)
    assert len({style.dash for style in treatments}) == len({style.marker for style in treatments}) == len(treatments)


def test_paint_reaches_every_depth() -> None:
    painted = theme.paint({"a": [{"color": "@blue"}, "@ink"], "b": 3, "c": "email@example.org"}, "light")
    assert painted == {"a": [{"color": "#0072B2"}, "#1B2733"], "b": 3, "c": "email@example.org"}
