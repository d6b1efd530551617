# SPDX-License-Identifier: BSD-3-Clause
# Lines of text as a C string.
s/[\\"]/\\&/g
s/.*/"&\\n"/
1s/^/static const char ask_launcher_text[] =\n/
$s/$/;/
