"""Which answers count as the same, and which answers math-verify alone would reward wrongly.

Rows are (given, expected). A row of REFUSED is an answer that a policy could be rewarded for and should not be.
"""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("math_verify")

from nemo_uecr.verifier.compare import compare, judge_plain
from nemo_uecr.verifier.extract import Checked, Verdict
from nemo_uecr.verifier.pool import check_response, judge

ACCEPTED = [
    # plain numbers, expressions, products, lists
    ("5", "5"), ("5.0", "5"), ("5.", "5"), (".5", "0.5"), ("+5", "5"), ("005", "5"), ("-0", "0"), ("-0.0", "0"),
    ("0", "0.000"), ("1,234", "1234"), ("1{,}234", "1234"), ("1,234,567.50", "1234567.5"), ("$5$", "5"),
    (" 5 ", "5"), (r"\frac{1}{2}", "0.5"), (r"\frac12", r"\frac{1}{2}"), (r"\dfrac{1}{2}", r"\frac{1}{2}"),
    ("1/2", r"\frac{1}{2}"), (r"\sqrt{4}", "2"), ("3(7)", "21"), ("(3)(7)", "21"), (r"3\left(7\right)", "21"),
    ("3[7]", "21"), (r"3\,(7)", "21"), ("3 (7)", "21"), ("7(1.5)(2)", "21"), (r"2\binom{4}{2}", "12"),
    (r"\binom{4}{2} \dbinom{3}{1}", "18"), (r"\binom{5}{2}(3)", "30"), (r"\frac{4}{2}(3)", "6"),
    (r"\frac{1 + \frac{6}{2}}{2}(5)", "10"), (r"\left(3\right)\frac12", "1.5"), (r"1\frac{1}{2}", "1.5"),
    (r"3\frac{1}{2}(2)", "7"), ("3,2(5)", "3,10"), ("3((7))", "21"), ("[3](7)", "21"), ("{3}(7)", "21"),
    (r"3\displaystyle(7)", "21"), (r"3\{7\}", "21"), (r"3\:(7)", "21"), (r"\frac{d}{dx}(x^3)", "3x^2"),
    (r"\frac{d}{dx}\left(x^3\right)", "3x^2"), (r"2\frac{(6)}{2}", "6"), (r"\frac43\frac93", "4"),
    (r"3\frac{\binom{4}{2}}{2}", "9"), (r"\sqrt[3]{8}(2)", "4"), (r"\log_2(8)(3)", "9"), (r"\gcd(4,6)(3)", "6"),
    ("(12) (34)", "(12)(34)"), (r"\begin{pmatrix}2(3)\\5(1)\end{pmatrix}", r"\begin{pmatrix}6\\5\end{pmatrix}"),
    (r"\frac{3(7)}{3}", "7"), ("-3(7)", "-21"), ("3(1/2)", "1.5"), ("3(7)+1", "22"),
    (r"\sqrt{3(4)}\cdot\sqrt{3}", "6"), (r"\log_2(8)", "3"), ("2^2(3)", "12"), ("3(x)", "3x"), (r"\sin(0)(3)", "0"),
    ("2(x+1)(3)", "6x+6"), ("x=5", "5"), (r"5\text{ cm}", "5"), (r"90^\circ", "90"), (r"50\%", "50"), (r"\$5", "5"),
    (r"\{1,2\}", r"\{2,1\}"), ("x+1", "1+x"), ("(1,2)", "(1, 2)"), (r"\text{Yes}", "Yes"),
    ("1000000000000000000000000000001", "1000000000000000000000000000001"), (r"\infty", r"\infty"), ("1e3", "1000"),
    ("1000", "1E+3"), ("-1.5e-3", "-0.0015"), ("10^3", "1000"), ("10^{-2}", "0.01"), (r"1.5 \times 10^{3}", "1,500"),
    (r"2\cdot 10^2", "200"), (r"6.02 \times 10^{23}", "602000000000000000000000"), ("1e-3", r"\frac{1}{1000}"),
    ("1e2/1e1", "10"), ("x = -1e3", "-1000"), ("(1e3, 2e3)", "(1000, 2000)"), (r"10,\!080", "10080"),
    (r"5\,000", "5000"), (r"50\%", "0.5"), (r"1,000\text{ km}", "1000"), (r"\frac{21}{3} = 7", "7"),
    (r"\theta = 7", "7"), (r"\emptyset", r"\varnothing"), ("x=4, x=5", "4,5"), (r"k=1 \text{ or } k=2", "1,2"),
    (r"4 \lor 5", "4,5"), (r"0.\overline{3}", r"\frac{1}{3}"), (r"0.1\overline{6}", r"\frac{1}{6}"),
    (r"x\in[0,1]", "[0,1]"), (r"\(5\)", "5"), (r"$864 \mbox{ inches}^2$", r"864\text{ square inches}"),
    (r"5\text{ centimeters}", r"5\text{ cm}"), ("2003_{4}", "2003_4"), ("1011", "1011_2"), ("10 a.m.", "10 a.m."),
    ("0.333...", "0.333..."), ("1,2,...", "1,2,..."), ("Washington D.C.", "Washington D.C."), ("x=5.", "x=5."),
    (r"\frac{1}{2}.", r"\frac{1}{2}."), ("0,001", "0,001"), ("x=5", "x=5."), ("0.5", r"\frac{1}{2}."),
    ("0,500", "0, 500"), ("(0,100)", "(0, 100)"),
    # structure, words, units, names
    ("x=10", "10"), ("f(x)=x^2+1", "x^2+1"), ("N = 2^{10} = 1024", "1024"),
    (r"(r,\theta)=(3,\pi/2)", r"\left( 3, \frac{\pi}{2} \right)"), ("x = 5.0", "x=5"), ("0.333333", r"\frac{1}{3}"),
    ("0.000000333333333", r"\frac{1}{3000000}"), ("3.141593", r"\pi"), ("e", "2.718282"), ("(4)", "4"), ("[4]", "4"),
    (r"\{4\}", "4"), ("4+0i", "4"), (r"\frac12", "0.5"), ("1e3", r"\frac{2000}{2}"), (r"10\text{ ways}", "10"),
    (r"5\text{ square units}", "5"), ("5 cm", r"5\text{ cm}"), (r"5\text{ dollars}", r"\$5"),
    (r"90\text{ degrees}", r"90^\circ"), (r"\{1,-2\}", "1,-2"), (r"1, 2, \text{ and } 3", "1,2,3"),
    (r"1+\sqrt{19}, 1-\sqrt{19}", r"1 \pm \sqrt{19}"), ("[-2,7]", r"x \in [-2,7]"), (r"\text{ABC}", "ABC"),
    ("12,144", "12, 144"), ("2^{10}", "1024"), ("2 1/2", r"\frac{5}{2}"), (r"1\frac45", r"\frac{9}{5}"),
    (r"58\,500\text{ km}", "58500"), (r"\sqrt5", r"\sqrt{5}"), (r"\frac{3}4", "0.75"), (r"\log_{2} 8", "3"),
    (r"6-5\mathrm{i}", "6-5i"), ("6-5i", r"6-5\mathrm{i}"), (r"5\mathrm{n}", "5n"), (r"5\mathrm{m}", "5m"),
    (r"\mathrm{x}+1", "x+1"), (r"5\,\mathrm{m}", "5"), (r"5\ \mathrm{m}^2", "5"),
    (r"5\,\mathrm{m}/\mathrm{s}", r"5\text{ m/s}"), (r"5\text{ cm²}", "5"), (r"\mathrm{C}", r"\text{(C)}"),
    ("2,1,2", "1,2,2"), ("3, 5, 7", "3,5,7"), (r"5\text{ apples}", r"5\text{ apples per day}"),
    ("evelyn", r"\text{Evelyn}"), ("A = a^2", "a^2"), ("R+r", "R + r"),
    (r"5\text{ m}/\text{s}", r"5\text{ meters per second}"), (r"5\text{ m s}^{-1}", r"5\text{ m/s}"),
    (r"5\text{ cm²}", r"5\text{ square cm}"), (r"3\text{ per hour}", r"3\text{ boys per hour}"),
    (r"5^\circ\mathrm{C}", r"5\text{ degrees Celsius}"), (r"\frac{\sqrt{3}}{2}", r"\frac{\sqrt3}2"),
    # equations
    ("5", "x=5"), ("5", "x_1=5"), ("5", r"\text{Area}=5"), ("5", "E=5"), ("1234", "N=1,234"), ("N=1234", "N=1,234"),
    ("1024", "N=2^{10}=1024"), ("2x+3", "y=2x+3"), ("2x+3=y", "y=2x+3"), ("2y=4x+6", "y=2x+3"),
    ("x^2+1", "f(x)=x^2+1"), ("x", "f(x)=x"), ("k", "x=k"), (r"\pi r^2", r"S=\pi r^2"), ("2n+1", "a_n=2n+1"),
    (r"\pm 5", r"x=\pm 5"), ("(5,6)", "(x,y)=(5,6)"), ("5,4", "x=4,x=5"), ("4,5", "x=4,5"), ("x=4,x=5", "x=4,5"),
    ("y=6,x=5", "x=5,y=6"), ("y=6,x=5", r"x=5\text{ and }y=6"), ("10", r"\sum_{k=1}^{4} k"),
    # primes, relations, blanks, single words
    ("f '(x)", "f'(x)"), (r"x\geq 3", r"x\ge 3"), (r"x\geqslant 3", r"x\ge 3"), ("x≥ 3", r"x\ge 3"),
    (r"x\le 3", r"x\leq 3"), (r"x\le 3", r"x\leqslant 3"), (r"x\le 3", "x≤ 3"), (r"x\neq 3", r"x\ne 3"),
    ("x≠ 3", r"x\ne 3"), (r"0 \leq x \leq 1", r"0 \le x \le 1"), (r"x\leq 3.0", r"x\le 3"),
    (r"10 \mathrm{~cm}", r"10\text{ cm}"), (r"10 \mathrm{\,cm}", r"10\text{ cm}"),
    (r"10 \mathrm{\ cm}", r"10\text{ cm}"), (r"10 \mathrm{\;cm}", r"10\text{ cm}"), (r"10 \mathrm{~cm}", "10"),
    (r"10 \mathrm{~cm}^{2}", r"10\text{ cm}^2"), (r"10 \mathrm{~m}", "10"), (r"5\text{~}", "5"),
    (r"10 \mathrm{~m} / \mathrm{s}", r"10\text{ m/s}"), ("True", "true"), ("even", "Even"),
    ("Increasing", "increasing"), ("ellipse", "Ellipse"), (r"\text{EVEN}", r"\text{even}"),
    ("EVELYN", r"\text{Evelyn}"), (r"$\text{True}$", "true"),
    # times, scores and ratios
    ("3 : 15", "3:15"), ("a : b = 1:2", "a:b=1:2"),
]  # fmt: skip
REFUSED = [
    # plain numbers, expressions, products, lists
    ("5", "6"), ("5", "-5"), ("0.5", "0.05"), ("12", "1.2"), ("1,2", "12"), ("1,23", "123"), ("12,3", "123"),
    ("1,2345", "12345"), ("0,500", "500"), ("0{,}500", "500"), (r"0,\!500", "500"), (r"0\,500", "500"),
    ("0,001", "1"), ("00,123", "123"), ("01,234", "1234"), ("-0,500", "-500"), ("0,500,000", "500000"),
    ("000,123", "123"), ("0,500e1", "5000"), (r"0,500\text{ cm}", "500"), ("0,500.5", "500.5"), ("500", "0,500"),
    ("(0,500,2)", "(500,2)"), ("0.333...", "0.333"), ("1,2,...", "1,2"), ("1,2", "1,2,..."), ("5..", "5"),
    ("0.9...", "1"), ("1,2", "1,2,3"), ("0.333", "1/3"), ("(1,2)", "(2,1)"), ("(1,2]", "(1,2)"),
    ("1000000000000000000000000000001", "1000000000000000000000000000002"), (r"\frac{1}{2}", r"\frac{1}{3}"),
    (r"\infty", r"-\infty"), ("x", "y"), ("3(7)", "10"), ("(3)(7)", "10"), (r"3\left(7\right)", "10"),
    ("3[7]", "10"), (r"3\,(7)", "10"), ("3 (7)", "10"), ("2(5)(3)", "10"), (r"2\binom{4}{2}", "8"),
    (r"\binom{4}{2}\binom{3}{1}", "9"), (r"\frac{4}{2}(3)", "5"), ("3,2(5)", "3,7"), ("3((7))", "10"),
    ("3[(7)]", "10"), (r"3\left(\left(7\right)\right)", "10"), ("3{(7)}", "10"), ("{3}(7)", "10"),
    ("{3}{(7)}", "10"), (r"3\displaystyle(7)", "10"), (r"3\{7\}", "10"), (r"\{3\}(7)", "10"), ("[3](7)", "10"),
    ("[3][7]", "10"), (r"\left[3\right]\left(7\right)", "10"), (r"3\frac{14/2}{1}", "10"),
    (r"2(\frac{(3)}{(1)})", "5"), (r"2\frac{(6)}{2}", "5"), (r"2\frac{+6}{2}", "5"), (r"2\frac{6}{(2)}", "5"),
    (r"2\,\frac{6}{2}", "5"), (r"{2}\frac{6}{2}", "5"), (r"2{\frac{6}{2}}", "5"), (r"2\frac{{6}}{2}", "5"),
    (r"2\displaystyle\frac{6}{2}", "5"), (r"{3}\binom{4}{2}", "9"), (r"[3]\binom{4}{2}", "9"),
    (r"3\displaystyle\binom{4}{2}", "9"), (r"3{\binom{4}{2}}", "9"), (r"3((\frac{1}{2}))", "3.5"),
    (r"[3]\frac{1}{2}", "3.5"), (r"3\frac{\binom{4}{2}}{2}", "6"), ("-3(7)", "-10"),
    (r"3(\frac{1}{2})", r"\frac{7}{2}"), (r"\frac{3(7)}{2}", "5"), ("1(2)(3)", "6.0001"), (r"\frac{}{}", "5"),
    ("5 or 6", "6"), ("five", "5"), ("1e3", "100"), ("1e3", "3000"), ("1e3", "e^3"), ("2e2", "2e^2"), ("e3", "1000"),
    ("3e", "3"), ("1e1e1", "100"), ("1e3.5", "1000"), ("1,0e3", "1000"), ("1.000", "1000"), (r"1\,00", "100"),
    ("10^34", "10000000000000000000000000000000000000000"), ("1e999999999", "1e999999998"), ("1e999999999", "7"),
    ("1e-999999999", "0"), (r"50\%", "5"), ("1e3 = 1e4", "10000"), (r"\frac{1}{2} = 7", "7"),
    (r"\binom{8}{1} = 7", "7"), (r"8 \Rightarrow 7", "7"), (r"8 \to 7", "7"), (r"8 \\ 7", "7"), (r"6\lor 5", "5"),
    (r"6\vee 5", "5"), (r"6\cup 5", "5"), (r"6\space 5", "5"), (r"6\enspace 5", "5"), (r"6\Leftrightarrow 5", "5"),
    (r"6\longmapsto 5", "5"), (r"6\because 5", "5"), (r"6\equiv 5", "5"), (r"6\cong 5", "5"), (r"6\sim 5", "5"),
    (r"6\approx 5", "5"), (r"6\mid 5", "5"), (r"6\in 5", "5"), (r"6\dots 5", "5"), (r"6\land 5", "5"),
    (r"6\oplus 5", "5"), (r"6\circ 5", "5"), (r"6\leadsto 5", "5"), ("6≈5", "5"), ("6→5", "5"),
    (r"6\text{ not }5", "5"), (r"6\mathrm{or}5", "5"), (r"6\) \(5", "5"), (r"6\][5", "5"), ("6 hence 5", "5"),
    (r"6\anything 5", "5"), (r"6\boxed{7}5", "5"), (r"\cancel{6} 5", "5"), (r"5 \text{ (not 6)}", "5"),
    (r"\(6\) \(5\)", "5"), (r"\[6\]\[5\]", "5"), (r"5\text{ cm}", r"5\text{ m}"),
    (r"5\text{ square cm}", r"5\text{ cm}"), ("2003_5", "2003_4"), ("1011_2", "1011"), ("5_6", "5"),
    (r"0\le x\le 1", "[0,1)"), ("x=4, y=5", "4,5"), ("8._x, 7", "7"), ("_8, 7", "7"), ("f.g(8), 7", "7"),
    ("8.(x) or 7", "7"), ("__8__ , 7", "7"), (".x, 7", "7"), (r"!8, \frac{7}{2}", r"\frac{7}{2}"),
    (r"8| \frac{7}{2}", r"\frac{7}{2}"), (r"+[8, \frac{7}{2}", r"\frac{7}{2}"), (r"_8 \frac{7}{2}", r"\frac{7}{2}"),
    (r"8\sum_, \frac{7}{2}", r"\frac{7}{2}"), (r"\log|8\frac{7}{2}", r"\frac{7}{2}"),
    (r"\frac{7}{2}, 8_", r"\frac{7}{2}"), (r"\frac{7}{2}, (8", r"\frac{7}{2}"),
    ("__import__('os').system('true') or 7", "7"),
    # structure, words, units, names
    ("x^2=10", "10"), ("2x=10", "10"), ("x+1=10", "10"), (r"\sin x=10", "10"), ("x+y=10", "10"), ("xy=10", "10"),
    ("1/x=10", "10"), ("-y=10", "10"), (r"\sqrt{x}=10", "10"), (r"\frac{x}{2}=10", "10"), ("P(x)+1=10", "10"),
    (r"\pi=10", "10"), ("e=10", "10"), ("2y=x^2+1", "x^2+1"), ("x=2x+3", "2x+3"), ("2x=5", "x=5"), ("y=5", "x=5"),
    ("1, 234", "1234"), ("12144", "12, 144"), ("4,4,4", "4"), ("1,-2,-2", "1,-2"), (r"10\text{ or eleven}", "10"),
    (r"10\text{ million}", "10"), (r"10\text{ dozen}", "10"), (r"10\text{ is not the answer}", "10"),
    (r"10\text{ squared}", "10"), (r"10\text{th power of two}", "10"), (r"10\text{, eleven}", "10"),
    (r"\{6,31,-1\}", "(6,31,-1)"), ("[6,31,-1]", "(6,31,-1)"), ("6,31,-1", "(6,31,-1)"), ("(-2,1)", "1,-2"),
    ("[4,4]", "4"), (r"[-\infty,2)", r"(-\infty,2)"), (r"90\text{ radians}", r"90^\circ"), ("5 cm", r"5\text{ m}"),
    ("5m", r"5\text{ cm}"), (r"5\text{ euros}", r"\$5"), (r"5\%", r"5\text{ cm}"),
    (r"18.90\text{ cents}", r"\$18.90"), ("CBA", "ABC"), ("A", "A1"), ("NaN", "NaN1"), ("x1", "x"),
    (r"\text{AC}", r"\text{CA}"), ("5'", "5"), ("2^10", "1024"), ("10^34", "10^{34}"), ("203 1", "204"),
    (r"203\ 1", "204"), (r"203\quad 1", "204"), (r"203\,1", "204"), ("203~1", "204"), ("203{}1", "204"),
    ("203 {1", "204"), (r"203\text{ hours }1", "204"), ("(203) 1", "204"), (r"203\frac{1}{1}", "204"),
    ("3 5 7", "15"), ("2 1/2", r"\frac{3}{2}"), ("1 6/2", "4"), (r"58\,500\text{ km}", "558"), ("7. 5", "7.5"),
    (r"\sqrt51", r"\sqrt{5}"), (r"\sqrt5 1", r"\sqrt{5}"), (r"\frac{3}41", r"\frac{3}{4}"),
    (r"\frac121", r"\frac{1}{21}"), (r"1+274\mathrm{i}", "275"), (r"200+3+1\mathbf{i}", "204"),
    (r"6-5\mathrm{i}", "1"), (r"3\mathbf{i}+4\mathbf{j}", "7"), (r"5\mathrm{i}", "5"), (r"5\mathbf{i}", "5"),
    (r"5\mathit{x}", "5"), (r"5\mathrm{K}", "5"), (r"5\mathrm{n}", "5"), (r"5\mathrm{x}^2", "5"),
    (r"5 \mathrm{e}", "5"), (r"5\text{!}", "5"), (r"5\text{²}", "5"), (r"5\text{+}", "5"), (r"5\text{'}", "5"),
    (r"5\text{*}", "5"), (r"5\text{?}", "5"), (r"5\text{√}", "5"), (r"2\mathrm{m}+1", "3"),
    (r"5\text{ cm}^{-1}", r"5\text{ cm}"), (r"5\text{ cm}^{22}", r"5\text{ cm}^2"),
    (r"5\text{ cm}^2\text{ cm}^2", r"5\text{ cm}^2"), (r"5\text{ s/m}", r"5\text{ m/s}"),
    (r"5\text{ gallons per minute}", r"5\text{ quarts per minute}"),
    (r"30\text{ miles per quart}", r"30\text{ miles per gallon}"),
    (r"3\text{ girls per hour}", r"3\text{ boys per hour}"), (r"5^\circ\mathrm{F}", r"5^\circ\mathrm{C}"),
    (r"5\text{ per cent}", r"5\text{ cents}"), (r"3\text{ hours }20\text{ hours}", r"3\text{ hours}"),
    (r"5\text{ boys}", r"5\text{ cm}"), (r"\frac{\pi}{3}^\circ", r"\frac{\pi}{3}"), ("3r^2", "3R^2"),
    ("1, 234", "1,234"), ("58 , 500", "58,500"), ("1,1,2", "1,2,2"), ("2R+r", "R+2r"), (r"\Pi", r"\pi"), ("X", "x"),
    # equations
    ("0", "ax+by+c=0"), ("0", "f(x)=0"), ("0", "P(x)=0"), ("0", "ab=0"), ("0", "a=b=0"), ("0", "x_1x_2=0"),
    ("0", "y'=0"), ("1", "x+y=1"), ("1", "a+b+c=1"), ("1", "x_1+x_2=1"), ("1", "xy=1"), ("1", r"\frac{x}{y}=1"),
    ("1", r"\alpha\beta=1"), ("-1", "mn=-1"), ("k", "ab=k"), ("5", "x=y=5"), ("5", "x_1=x_2=5"), ("5", "|x|=5"),
    ("7", r"a \cdot b=7"), ("12", "AB=12"), ("60", r"\angle A=60"), (r"\frac{\pi}{2}", r"\sin x=\frac{\pi}{2}"),
    ("3", r"m\angle A=3"), ("2x+3", "x=2x+3"), ("2x", "y'=2x"), ("g(x)", "f(x)=g(x)"), ("f(-x)", "f(x)=f(-x)"),
    ("x", "f(g(x))=x"), ("2a_{n-1}", "a_n=2a_{n-1}"), ("1,2", "x+y=1,x-y=2"), ("6,5", "x=5,y=6"), ("5,6", "x=5,y=6"),
    ("6,5", r"x=5\text{ and }y=6"), (r"\{6,5\}", "x=5,y=6"), ("2,1,3", "a=1,b=2,c=3"), ("3,2", "k=2, m=3"),
    ("2,1", "x_1=1,x_2=2"), ("2,1", r"\alpha=1,\beta=2"), ("2,1", "a=1;b=2"), ("2,1", "x=1,y+z=2"),
    ("x=6,y=5", "x=5,y=6"), ("a=5,b=6", "x=5,y=6"), ("x=5", "x=5,y=6"), ("4,6", "x=4,x=5"), ("(6,5)", "(x,y)=(5,6)"),
    # primes, relations, blanks, single words
    ("f'(x)", "f(x)"), ("f(x)", "f'(x)"), ("f''(x)", "f'(x)"), (r"f^{\prime}(x)", "f(x)"),
    (r"f^{\prime\prime}(x)", "f'(x)"), ("y''+y=0", "y'+y=0"), ("y+y''=0", "2y''=0"), ("2y''+y=0", "y''+2y=0"),
    ("2x'", "2x"), ("2x", "2x'"), ("g'(1)=3", "g(1)=3"), ("A'", "A"), (r"\triangle A'B'C'", r"\triangle ABC"),
    ("A'B", "AB'"), (r"\text{A}", r"\text{A'}"), ("(fg)'", "fg"), ("x=5", "x'=5"), ("5", "x'=5"), ("3", "3'"),
    ("12", "1'2"), ("5'", "5''"), ("5", '5"'), ("A^T", "A'"), (r"\theta'", r"\theta"), ("2',1", "2,1'"),
    ("x\u2032", "x"),
    ("x\u2019", "x"), ("x\u2033", "x"), ("x<3", r"x\le 3"), (r"x\leq 3", r"x\geq 3"), (r"x\neq 3", "x=3"),
    (r"x\geq 3", r"y\ge 3"), (r"0\leq x<1", r"0\le x\le 1"), ("6>=5", "5"), ("5<=5", "5"), ("x≠5", "5"),
    (r"0\lt 5", "5"), ("3", "x>=3"), ("x=>3", r"x\ge 3"), (r"10 \mathrm{~cm}", r"10\text{ m}"),
    (r"10\mathrm{~cm}^2", r"10\mathrm{~cm}"), (r"10\mathrm{~i}", "10"), (r"10\mathrm{~x}", "10"),
    (r"1\mathrm{~000}", "1000"), (r"10~\text{ or }~11", "10"), (r"10\text{~million}", "10"), ("6~5", "5"),
    ("abc", "ABC"), ("ABC", "abc"), (r"\text{abc}", "ABC"), ("pqr", r"\text{PQR}"), ("XYZ", "xyz"), ("NaN", "nan"),
    ("Odd", "Even"), ("TRUE", "false"), ("CBA", "abc"),
    # times, scores and ratios
    ("9:45", "3:15"), ("1:5", "3:15"), (r"1:5\text{ p.m.}", r"3:15\text{ p.m.}"), ("1:3", "10:30"), ("2:60", "1:30"),
    ("0", "0:30"), ("0:30", "0:45"), ("8", "8:00"), ("8:0", "8:00"), ("2:4", "1:2"), ("1:2", "2:4"), ("3:05", "3:5"),
    ("3 : 45", "1 : 15"), ("1/5", "3:15"), (r"\frac{1}{5}", "3:15"), ("0.2", "3:15"), ("3015", "3:15"),
    ("12", "12:1"), ("-1:2", "1:-2"), ("1.5:3", "1:2"), (r"1:\frac{5}{1}", "3:15"), ("a:b=2:4", "a:b=1:2"),
    ("1:2", "a:b=1:2"), (r"\text{9:45 p.m.}", r"\text{3:15 p.m.}"), ("3:15:00", "3:15"), ("2:4:6", "1:2:3"),
    ("3:15 am", "3:15 pm"), ("5 am", "5 pm"), ("5 a.m.", "5 p.m."), ("5", "5am"),
    (r"\frac{1}{2} am", r"\frac{1}{2} pm"), ("5 pm", "5"), ("3:15, 4:20", "4:20, 3:16"),
]  # fmt: skip


@pytest.mark.parametrize(("given_answer", "expected"), ACCEPTED)
def test_accepted(given_answer: str, expected: str) -> None:
    assert judge(given_answer, expected) is Verdict.CORRECT


@pytest.mark.parametrize(("given_answer", "expected"), REFUSED)
def test_refused(given_answer: str, expected: str) -> None:
    assert judge(given_answer, expected) is Verdict.WRONG


@given(st.integers(-(10**9), 10**9), st.integers(0, 3), st.integers(0, 3))
def test_forms_of_one_integer(number: int, zeros: int, leading: int) -> None:
    sign = "-" if number < 0 else ""
    written = f"{sign}{'0' * leading}{abs(number)}" + ("." + "0" * zeros if zeros else "")
    assert judge(written, str(number)) is Verdict.CORRECT
    assert judge(f"{number:,}", str(number)) is Verdict.CORRECT
    assert judge(written, str(number + 1)) is Verdict.WRONG


#: Beyond these bounds the sums of the test itself are rounded, to the 28 digits of `decimal`.
@given(st.decimals(-(10**12), 10**12, places=4), st.integers(-9, 9))
def test_scientific_notation_is_exact(value: Decimal, power: int) -> None:
    assert judge_plain(f"{value}e{power}", f"{value.scaleb(power):f}") is Verdict.CORRECT
    assert judge_plain(rf"{value} \times 10^{{{power}}}", f"{value.scaleb(power):f}") is Verdict.CORRECT
    assert judge_plain(f"{value}e{power}", f"{value.scaleb(power) + 1:f}") is Verdict.WRONG


@given(st.lists(st.integers(2, 9), min_size=2, max_size=4), st.data())
def test_values_side_by_side_multiply(factors: list[int], data: st.DataObject) -> None:
    """math-verify alone adds a whole number to the rational behind it: it reads 3(7) as 10."""
    forms = ("({})", "[{}]", r"\left({}\right)", r"\frac{{{}}}{{1}}", "{{({})}}")
    text = str(factors[0]) + "".join(data.draw(st.sampled_from(forms[:3])).format(factor) for factor in factors[1:])
    product = 1
    for factor in factors:
        product *= factor
    assert compare(text, str(product)) is Verdict.CORRECT
    assert sum(factors) == product or compare(text, str(sum(factors))) is Verdict.WRONG


def test_verdicts_and_rewards() -> None:
    assert check_response(r"\boxed{5}", "5") == Checked(Verdict.CORRECT, "5")
    assert check_response(r"\boxed{6}", "5") == Checked(Verdict.WRONG, "6")
    assert check_response("5", "5") == Checked(Verdict.NO_ANSWER, None)
    assert check_response(r"\boxed{ }", "5") == Checked(Verdict.NO_ANSWER, "")
    assert check_response(r"\boxed{5}", r"\boxed{5}") == Checked(Verdict.CORRECT, "5")  # a boxed reference
    assert check_response(r"The answer is not \boxed{5} but \boxed{6}.", "5").verdict is Verdict.WRONG
    assert [Checked(verdict, None).reward for verdict in Verdict] == [1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "text",
    [
        r"\frac{1}{0}", r"\frac", r"\left(", r"\begin{matrix}", "&", "_", "^", "^^", "x_", "{}", "%", "#", "\x00", "∑",
        "\\", r"\text{", "1e400000000", "nan", "inf", "None", "__import__('os')", "a=b=c", "1=2", r"\sum_{", "[1,2",
        "|x", "||", "0^0",
    ],
)  # fmt: skip
def test_nonsense_is_wrong_or_an_error_but_never_a_crash(text: str) -> None:
    assert judge(text, "7") in (Verdict.WRONG, Verdict.ERROR)


def test_plain_answers_load_nothing_heavy() -> None:
    root = Path(__file__).resolve().parents[2]
    program = (
        "import sys; from nemo_uecr.verifier.pool import check_response;"
        "check_response('\\\\boxed{1,234}', '1234'); sys.exit(any(m in sys.modules for m in ('sympy', 'math_verify')))"
    )
    assert subprocess.run([sys.executable, "-c", program], cwd=root, check=False).returncode == 0
