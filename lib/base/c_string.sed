# SPDX-License-Identifier: BSD-3-Clause
# Lines of text as the C string file_text.
s/[\\"]/\\&/g
s/.*/"&\\n"/
1s/^/static const char file_text[] =\n/
$s/$/;/
