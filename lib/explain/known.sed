# known.txt as a C string; what is for people and tests stays out.
/^#/d
/^seen:/d
s/["\\]/\\&/g
s/^/"/
s/$/\\n"/
