"""What is made of stored records, and of nothing else.

published   what the paper published
figures     numbers derived from rows
targets     the requirements, judged
tables, sections    the report, whatever it is written as
markdown, html, charts      as Markdown, and as a page
compare     what got slower between two records
"""
