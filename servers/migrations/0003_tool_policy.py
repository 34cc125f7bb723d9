from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('servers', '0002_connection_options'),
    ]

    operations = [
        migrations.AddField(
            model_name='server',
            name='policy',
            field=models.JSONField(blank=True, default=dict),
        ),
    ]
